"""The float64 reading of a jaxpr: what it would compute if every float in it were a float64.

This is the truth that rewrites are measured against. It is an interpreter with JAX's x64 mode on in this thread only;
the global flag is never touched.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from ..errors import Refuse
from ..ir import jaxprs
from ..ir.jaxprs import Literal

_WIDTH_MATTERS = {"bitcast_convert_type", "reduce_precision", "nextafter"}  # no meaning apart from the stored width
_CALLS = {"jit", "pjit", "closed_call", "core_call", "eval_jaxpr", "custom_jvp_call", "custom_vjp_call", "remat2",
          "checkpoint"}  # fmt: skip


def read64(closed, args: Sequence[Any]) -> list[np.ndarray]:
    """Evaluate a closed jaxpr on arguments with every float as float64.

    Args:
        closed: the closed jaxpr.
        args: NumPy arrays; floats of any width.

    Returns:
        NumPy arrays, float64 where the program has floats.

    Raises:
        Refuse: the program depends on how wide its floats are stored (bit casts).
    """
    with jax.enable_x64(True):
        run = jax.jit(lambda *flat: evaluate64(closed, flat))
        return [np.asarray(x) for x in run(*[widened(a) for a in args])]


def _is_float(dtype) -> bool:
    return jnp.issubdtype(dtype, jnp.floating)


def widened(x):
    """A value with its floats as float64; to be called with x64 mode on."""
    return jnp.asarray(x, jnp.float64) if _is_float(jnp.result_type(x)) else jnp.asarray(x)


def evaluate64(jaxpr, args) -> list:
    """Interpret a jaxpr on float64 arrays; to be called with x64 mode on (see `read64`)."""
    body = jaxprs.open_jaxpr(jaxpr)
    env: dict[Any, Any] = dict(zip(body.invars, args, strict=True))
    for var, value in zip(body.constvars, jaxprs.consts_of(jaxpr)):
        env[var] = widened(value)

    def read(atom):
        if type(atom) is not Literal:
            return env[atom]
        number = jaxprs.literal_array(atom)
        return widened(number) if _is_float(number.dtype) else jnp.asarray(number)

    for eqn in body.eqns:
        env.update(zip(eqn.outvars, _equation(eqn, [read(a) for a in eqn.invars])))
    return [read(a) for a in body.outvars]


def _equation(eqn, args) -> Sequence[Any]:
    name, params = eqn.primitive.name, eqn.params
    if name in _WIDTH_MATTERS and any(_is_float(v.aval.dtype) for v in [*eqn.invars, *eqn.outvars]):
        raise Refuse(f"{name} depends on how floats are stored, so it has no float64 reading")
    if name in _CALLS:
        return evaluate64(jaxprs.children(eqn)[0].jaxpr, args)
    if hasattr(params.get("op"), "static"):
        return evaluate64(params["jaxpr"], args)
    if name in _CONTROL_FLOW:
        return _CONTROL_FLOW[name](eqn, args)
    if name == "conv_general_dilated" and _is_depthwise(eqn):
        return [_depthwise(eqn.params, *args)]
    if name in ("pvary", "pcast", "sharding_constraint", "reshard"):
        return args
    out = eqn.primitive.bind(*_match_scalars(args, eqn), **_params64(params))
    return out if eqn.primitive.multiple_results else [out]


def _match_scalars(args, eqn):
    """Integer operands keep their type; floats are all float64 already."""
    return [a if _is_float(a.dtype) else lax.convert_element_type(a, v.aval.dtype) for a, v in zip(args, eqn.invars)]


def _params64(params: dict[str, Any]) -> dict[str, Any]:
    out = dict(params)
    for key in ("new_dtype", "preferred_element_type", "dtype", "out_dtype"):
        if out.get(key) is not None and _is_float(out[key]):
            out[key] = np.dtype("float64")
    if "precision" in out:
        out["precision"] = None
    return out


def _scan(eqn, args):
    parts = jaxprs.scan_parts(eqn)
    body = jaxprs.children(eqn)[0].jaxpr
    consts, carry = args[: parts.consts], args[parts.consts : parts.consts + parts.carry]

    def step(c, x):
        out = evaluate64(body, [*consts, *c, *x])
        return out[: parts.carry], out[parts.carry :]

    final, stacked = lax.scan(step, carry, args[parts.consts + parts.carry :], parts.length, reverse=parts.reverse)
    return [*final, *stacked]


def _while(eqn, args):
    p = eqn.params
    cond, body = (c.jaxpr for c in jaxprs.children(eqn))
    nc, nb = p["cond_nconsts"], p["body_nconsts"]
    cond_consts, body_consts, carry = args[:nc], args[nc : nc + nb], args[nc + nb :]
    return lax.while_loop(
        lambda c: evaluate64(cond, [*cond_consts, *c])[0], lambda c: evaluate64(body, [*body_consts, *c]), carry
    )


def _cond(eqn, args):
    branches = [lambda *a, j=c.jaxpr: evaluate64(j, a) for c in jaxprs.children(eqn)]
    index = args[0].astype(jnp.int32)
    return lax.switch(index, branches, *args[1:])


def _is_depthwise(eqn) -> bool:
    """Whether a convolution has one axis, and one filter per channel."""
    lhs, rhs, p = eqn.invars[0].aval, eqn.invars[1].aval, eqn.params
    spec = p["dimension_numbers"]
    channels = lhs.shape[spec.lhs_spec[1]]
    single = len(lhs.shape) == 3 and p["batch_group_count"] == 1 and p["lhs_dilation"] == (1,)
    return single and p["feature_group_count"] == channels == rhs.shape[spec.rhs_spec[0]]


def _depthwise(p: dict[str, Any], lhs, rhs):
    """The convolution as a sum of shifted products: XLA's CPU takes time quadratic in the channels for float64."""
    spec, stride, dilation = p["dimension_numbers"], p["window_strides"][0], p["rhs_dilation"][0]
    x, taps = jnp.transpose(lhs, spec.lhs_spec), jnp.transpose(rhs, spec.rhs_spec)[:, 0]  # [B, C, T], [C, K]
    low, high = p["padding"][0]
    x = lax.pad(x, np.zeros((), x.dtype), ((0, 0, 0), (0, 0, 0), (low, high, 0)))
    steps = (x.shape[2] - (taps.shape[1] - 1) * dilation - 1) // stride + 1
    reach = (steps - 1) * stride + 1
    terms = [taps[:, k, None] * x[..., k * dilation : k * dilation + reach : stride] for k in range(taps.shape[1])]
    return jnp.transpose(sum(terms), [spec.out_spec.index(d) for d in range(3)])


_CONTROL_FLOW = {"scan": _scan, "while": _while, "cond": _cond}
