"""Op: a building block that explains itself, and the primitive that makes it one node of a JAX program.

An Op call binds a primitive named after the Op whose parameter `jaxpr` is its *reference* at the actual shapes. All of
JAX's transformations fall back on that reference, so a program with Ops runs on every backend and under jit, grad,
vmap, remat, shard_map and jax.export, whether or not a kernel exists there:

    eval, lowering   the implementation the node names, or the reference
    jvp, transpose   of the reference, or of the implementation that the Op names as its `derivative`; the Op node
                     is gone afterwards, so remat policies and checkpoint_name see plain equations
    vmap             the node stays; reference and implementation are vmapped inside it
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.extend import source_info_util
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

source_info_util.register_exclusion(__file__)  # an Op call's source is the line that calls it
PLATFORMS = ("cpu", "tpu", "cuda", "rocm")


@dataclass(frozen=True)
class Implementation:
    """One way to compute an Op.

    Args:
        name: "xla", "tpu_kernel", ...; appears in dumps and reports.
        function: same arguments and results as the Op's reference.
        platforms: where it runs; all of `PLATFORMS` when empty.
        supports: called with the same arguments as abstract values; returns None, or in a sentence why it cannot run.
        interpreted: the same function run by an interpreter on the host, to prove it where the platform is absent.
    """

    name: str
    function: Callable
    platforms: tuple[str, ...] = ()
    supports: Callable[..., str | None] = lambda *args, **static: None
    interpreted: Callable | None = None

    def refusal(self, platform: str, args: Sequence[Any], static: Mapping[str, Any]) -> str | None:
        """Why it cannot serve this platform and these shapes; None when it can."""
        if self.platforms and platform not in self.platforms:
            return f"{self.name} runs on {', '.join(self.platforms)}, not on {platform}"
        return self.supports(*args, **static)


class Tolerance(NamedTuple):
    """How far an implementation may be from the float64 reading of the reference, and why.

    Args:
        float32: largest |difference| / (1 + |truth|) with float32 inputs.
        bfloat16: the same with bfloat16 inputs.
        reason: where the number comes from.
    """

    float32: float = 1e-5
    bfloat16: float = 2e-2
    reason: str = "a few roundings of the working precision"

    def of(self, dtype) -> float:
        """The limit for outputs of a dtype."""
        return self.float32 if jnp.finfo(dtype).bits >= 32 else self.bfloat16


_DEFAULT_TOLERANCE = Tolerance()


@dataclass(frozen=True, eq=False)
class Op:
    """A building block: public function, reference, implementations, cost model, tolerance, real shapes.

    Args:
        name: kebab-case; also the primitive's name in jaxprs and dumps.
        reference: plain JAX function: the meaning, the oracle, the derivative and the fallback.
        implementations: in order of preference.
        cost: `cost(*avals, **static)` -> dict of flops, hbm_bytes_read, hbm_bytes_written, link_bytes, vmem_bytes.
        tolerance: limit that every implementation is proved against.
        shapes: named real-world arguments: name -> (tuple of ShapeDtypeStruct, static keywords).
        sample: `sample(rng, *avals, **static)` -> list of numpy arrays that are valid arguments; random when None.
        derivative: name of the (differentiable) implementation whose derivative is used; the reference's when None.

    Example:
        >>> double = Op("double", lambda x: x + x)
        >>> double(jnp.float32(3.0))
        Array(6., dtype=float32)
        >>> jax.make_jaxpr(double)(1.0).eqns[0].primitive
        double
        >>> jax.grad(lambda x: double(x) * x)(3.0)
        Array(12., dtype=float32, weak_type=True)
    """

    name: str
    reference: Callable
    implementations: tuple[Implementation, ...] = ()
    cost: Callable[..., Mapping[str, float]] | None = None
    tolerance: Tolerance = _DEFAULT_TOLERANCE
    shapes: Mapping[str, tuple] = field(default_factory=dict)
    sample: Callable[..., list] | None = None
    derivative: str | None = None
    primitive: Primitive = field(init=False, repr=False)

    def __post_init__(self):
        primitive = Primitive(self.name)
        primitive.multiple_results = True
        object.__setattr__(self, "primitive", primitive)
        object.__setattr__(self, "__name__", self.name.replace("-", "_"))
        object.__setattr__(self, "__wrapped__", self.reference)
        object.__setattr__(self, "__doc__", self.reference.__doc__)
        _register(primitive)

    def __repr__(self) -> str:
        return f"<Op {self.name}>"

    def __call__(self, *args, implementation: str | None = "auto", **static):
        """Apply the Op.

        Args:
            *args: arrays (or None for an optional one), as the reference takes them.
            implementation: a name, "auto" for the best that runs on the platform, None for the reference.
            **static: hashable keywords of the reference.

        Returns:
            What the reference returns.

        Raises:
            ValueError: the Op has no implementation of that name.
        """
        names = [i.name for i in self.implementations]
        if implementation not in (None, "auto", *names):
            raise ValueError(f"{self.name} has no implementation {implementation!r}; it has {names}, 'auto' and None")
        flat, in_tree = jax.tree.flatten(args)
        flat = [a if isinstance(a, jax.Array) else jnp.asarray(a) for a in flat]
        signature = Signature(self, in_tree, tuple(sorted(static.items())), ())
        traced = _reference(signature).trace(*map(jax.typeof, flat))
        if len(traced.jaxpr.in_avals) != len(flat):
            raise TypeError(f"the reference of {self} closes over a traced value; pass that as an argument instead")
        out = self.primitive.bind(*flat, jaxpr=traced.jaxpr, op=signature, implementation=implementation)
        return jax.tree.unflatten(jax.tree.structure(traced.out_info), out)

    def named(self, implementation: str) -> Implementation:
        """The implementation of that name; KeyError otherwise."""
        return {i.name: i for i in self.implementations}[implementation]

    def choose(self, platform: str, args: Sequence[Any], static: Mapping[str, Any]) -> Implementation | None:
        """The first implementation that serves the platform and the arguments; None means the reference."""
        return next((i for i in self.implementations if i.refusal(platform, args, static) is None), None)


@dataclass(frozen=True)
class Signature:
    """What an Op node stands for besides its operands: the Op, the arguments' pytree, statics, vmaps around it."""

    op: Op
    in_tree: Any
    static: tuple[tuple[str, Any], ...]
    vmaps: tuple[tuple[int | None, ...], ...]  # in_axes of each vmap, innermost first
    spelling: str = field(init=False, repr=False)  # of the statics: 1, 1.0 and True are equal, as are 0.0 and -0.0

    def __post_init__(self):
        object.__setattr__(self, "spelling", repr(self.static))

    def arguments(self, flat: Sequence[Any]) -> tuple:
        """The Op's positional arguments from the operands of one (not vmapped) call."""
        return jax.tree.unflatten(self.in_tree, flat)

    def argument_avals(self, flat: Sequence[jax.ShapeDtypeStruct]) -> tuple:
        """The Op's abstract arguments from the node's operand types: vmapped axes taken off, outermost first."""
        avals = list(flat)
        for in_axes in reversed(self.vmaps):
            avals = [a if axis is None else _without(a, axis) for a, axis in zip(avals, in_axes)]
        return self.arguments(avals)

    def function(self, implementation: str | None, platform: str) -> Callable[..., list]:
        """Function of the node's operands that returns its flat results by an implementation."""

        def one(*flat):
            args = self.arguments(flat)
            chosen = self._implementation(implementation, platform, args)
            out = (chosen.function if chosen else self.op.reference)(*args, **dict(self.static))
            return jax.tree.leaves(out)

        return _vmapped(one, self.vmaps)

    def _implementation(self, name: str | None, platform: str, args) -> Implementation | None:
        if name is None:
            return None
        static = dict(self.static)
        if name != "auto":
            chosen = next((i for i in self.op.implementations if i.name == name), None)
            if chosen is not None and chosen.refusal(platform, args, static) is None:
                return chosen
        return self.op.choose(platform, args, static)

    def derivative_function(self, implementation: str | None) -> Callable[..., list]:
        """Function of the operands whose derivative is the node's."""
        name = self.op.derivative if implementation is not None else None
        if name is None:
            return self.function(None, "cpu")
        function = self.op.named(name).function
        return _vmapped(lambda *flat: jax.tree.leaves(function(*self.arguments(flat), **dict(self.static))), self.vmaps)

    def __str__(self) -> str:
        static = ", ".join(f"{k}={v}" for k, v in self.static)
        return f"{self.op.name}({static})" + "".join(f".vmap{axes}" for axes in self.vmaps)


def _without(aval: jax.ShapeDtypeStruct, axis: int) -> jax.ShapeDtypeStruct:
    shape = list(aval.shape)
    del shape[axis]
    return jax.ShapeDtypeStruct(tuple(shape), aval.dtype)


def _vmapped(function: Callable, vmaps) -> Callable:
    for in_axes in vmaps:
        function = jax.vmap(function, in_axes=in_axes)
    return function


@functools.lru_cache(maxsize=4096)
def _reference(signature: Signature) -> Any:
    """The reference as a jitted function of the operands; jit caches by all that shapes a trace (types, x64, mesh)."""

    def reference(*flat):
        return signature.op.reference(*signature.arguments(flat), **dict(signature.static))

    return jax.jit(reference)


# ---------------------------------------------------------------- the primitive's rules
def _register(primitive: Primitive) -> None:
    primitive.def_impl(functools.partial(_impl, primitive))
    primitive.def_abstract_eval(lambda *avals, jaxpr, **_: jaxpr.out_avals)
    ad.primitive_jvps[primitive] = _jvp
    ad.primitive_transposes[primitive] = _transpose
    batching.primitive_batchers[primitive] = functools.partial(_batch, primitive)
    for platform in PLATFORMS:
        mlir.register_lowering(primitive, functools.partial(_lower, platform), platform=platform)


@functools.lru_cache(maxsize=1024)
def _jitted(primitive: Primitive, params: tuple) -> Callable:
    return jax.jit(functools.partial(primitive.bind, **dict(params)))


def _impl(primitive: Primitive, *args, **params):
    if jax.config.jax_disable_jit:  # pyright: ignore[reportAttributeAccessIssue]
        return params["op"].function(params["implementation"], jax.default_backend())(*args)
    return _jitted(primitive, tuple(params.items()))(*args)


def _lower(platform: str, ctx, *args, op: Signature, implementation, jaxpr):
    del jaxpr  # the reference, which op.function traces again where it is chosen
    return mlir.lower_fun(op.function(implementation, platform), multiple_results=True)(ctx, *args)


def _jvp(primals, tangents, *, op: Signature, implementation, jaxpr):
    del jaxpr
    function = op.derivative_function(implementation)
    moving = [i for i, t in enumerate(tangents) if type(t) is not ad.Zero]

    def of_moving(*values):
        args = list(primals)
        for i, value in zip(moving, values):
            args[i] = value
        return function(*args)

    out, out_dot = jax.jvp(of_moving, [primals[i] for i in moving], [tangents[i] for i in moving])
    still = jax.dtypes.float0
    return out, [ad.Zero(jax.typeof(o).to_tangent_aval()) if t.dtype == still else t for o, t in zip(out, out_dot)]


def _transpose(cotangents, *args, op: Signature, implementation, jaxpr):
    del implementation
    linear = [i for i, a in enumerate(args) if ad.is_undefined_primal(a)]
    function = op.function(None, "cpu")

    def of_linear(*values):
        full = list(args)
        for i, value in zip(linear, values):
            full[i] = value
        return function(*full)

    given = [ad.instantiate_zeros(c) if type(c) is ad.Zero else c for c in cotangents]
    shapes = [jax.ShapeDtypeStruct(args[i].aval.shape, args[i].aval.dtype) for i in linear]
    moved = iter(jax.linear_transpose(of_linear, *shapes)(given))
    return [next(moved) if i in linear else None for i in range(len(args))]


def _batch(primitive, args, dims, *, op: Signature, implementation, jaxpr):
    in_axes = tuple(dims)  # None: not mapped
    around = Signature(op.op, op.in_tree, op.static, (*op.vmaps, in_axes))
    function = around.function(None, "cpu")
    batched = jax.make_jaxpr(function)(*(jax.typeof(a) for a in args))
    out = primitive.bind(*args, jaxpr=batched, op=around, implementation=implementation)
    return out, [0] * len(out)
