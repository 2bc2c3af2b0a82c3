"""Measure: how far a program is from the float64 reading of another, on random arguments."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..errors import Refuse
from ..ir import jaxprs
from .certificate import Claim
from .reading64 import evaluate64, read64, widened
from .under_vmap import as_under_vmap

MAX_BYTES = 256 << 20  # inputs, outputs and temporaries of one measurement, as float64
DEFAULT_TOLERANCE = {"float64": 1e-12, "float32": 1e-5, "float16": 4e-3, "bfloat16": 2e-2}

Sample = Callable[..., Sequence[Any]]


def random_arguments(avals: Sequence[Any], seed: int) -> list[np.ndarray]:
    """Standard normal floats, small whole numbers, coin flips."""
    rng = np.random.default_rng(seed)
    return [_random(rng, a) for a in avals]


def _random(rng, aval) -> np.ndarray:
    if jnp.issubdtype(aval.dtype, jnp.floating):
        return rng.standard_normal(aval.shape).astype(aval.dtype)
    if aval.dtype == np.bool_:
        return rng.random(aval.shape) < 0.5
    if jnp.issubdtype(aval.dtype, jnp.integer):
        return rng.integers(0, 4, aval.shape).astype(aval.dtype)
    raise Refuse(f"no random arguments of dtype {aval.dtype}")


def seed_of(text: str) -> int:
    """A fixed seed for a name, the same in every process."""
    return zlib.crc32(text.encode())


def bytes_needed(closed) -> int:
    """Upper bound of the float64 bytes one evaluation holds: inputs, results and every intermediate."""
    body = jaxprs.open_jaxpr(closed)
    total = sum(_bytes(v.aval) for v in body.invars)
    for eqn in body.eqns:
        total += sum(_bytes(v.aval) for v in eqn.outvars)
        total += sum(bytes_needed(j) for j in jaxprs.all_jaxprs(eqn))
    return total


def _bytes(aval) -> int:
    if not all(isinstance(d, int) for d in getattr(aval, "shape", ())):
        return MAX_BYTES + 1  # symbolic sizes: measured at the rule's own
    return 8 * int(np.prod(getattr(aval, "shape", ()), dtype=np.int64))


def largest_error(got: Sequence[Any], truth: Sequence[np.ndarray]) -> float:
    """Largest |got - truth| / (1 + |truth|); infinite where one is finite and the other is not, or integers differ."""
    worst = 0.0
    for g, t in zip(got, truth, strict=True):
        g = np.asarray(g)
        if g.dtype.kind in "iub":
            worst = max(worst, 0.0 if np.array_equal(g, t) else np.inf)
            continue
        g64, t64 = g.astype(np.float64), np.asarray(t, np.float64)
        same = (g64 == t64) | (np.isnan(g64) & np.isnan(t64))
        with np.errstate(invalid="ignore"):
            error = np.where(same, 0.0, np.abs(g64 - t64) / (1.0 + np.abs(t64)))
        worst = max(worst, float(np.max(np.where(np.isnan(error), np.inf, error), initial=0.0)))
    return worst


def default_tolerance(avals: Sequence[Any]) -> float:
    """The loosest default among the float results."""
    names = [str(a.dtype) for a in avals if jnp.issubdtype(a.dtype, jnp.floating)]
    return max((DEFAULT_TOLERANCE.get(n, 2e-1) for n in names), default=0.0)


def measure(
    truth, candidate, args: Sequence[np.ndarray], tolerance: float | None, *, own_error: bool, axis_sizes=None
) -> Claim | str:
    """Hold a candidate program against the float64 reading of another.

    Args:
        truth: closed jaxpr whose float64 reading is the truth.
        candidate: closed jaxpr with the same arguments and results.
        args: the arguments.
        tolerance: limit of the error; the dtype's default when None.
        own_error: whether the candidate may be as far off as `truth` itself is in its own precision (times four).
        axis_sizes: named axes; the programs then run under vmap over them, with every shard the same shape.

    Returns:
        A numeric Claim, or a sentence that says by how much it failed.
    """
    limit = default_tolerance(candidate.out_avals) if tolerance is None else tolerance
    run = _runner(candidate, axis_sizes)
    try:
        exact = [np.asarray(x) for x in run64(truth, args, axis_sizes)]
    except Refuse:  # no float64 reading: then bit for bit
        exact, limit = [np.asarray(x) for x in _runner(truth, axis_sizes)(args)], 0.0
    error = largest_error(run(args), exact)
    if own_error and error > limit:
        limit = max(limit, 4.0 * largest_error(_runner(truth, axis_sizes)(args), exact))
    if error <= limit:
        return Claim("numeric", error, limit)
    return f"off by {error:.1e} (limit {limit:.1e})"


def _runner(closed, axis_sizes):
    if axis_sizes:
        closed = as_under_vmap(closed, axis_sizes)
    return lambda args: jax.jit(_under_axes(jaxprs.as_function(closed), axis_sizes))(*args)


def run64(closed, args, axis_sizes=None) -> Sequence[Any]:
    """The float64 reading of a program, under named axes where it has any (arguments then lead with the shards)."""
    if not axis_sizes:
        return read64(closed, args)
    closed = as_under_vmap(closed, axis_sizes)
    with jax.enable_x64(True):
        return jax.jit(_under_axes(lambda *a: evaluate64(closed, a), axis_sizes))(*map(widened, args))


def per_shard(aval, axis_sizes) -> jax.ShapeDtypeStruct:
    """The type of a value of all shards: named axes first."""
    return jax.ShapeDtypeStruct((*axis_sizes.values(), *aval.shape), aval.dtype)


def _under_axes(fn: Callable, axis_sizes) -> Callable:
    for name in reversed(list(axis_sizes or {})):
        fn = jax.vmap(fn, axis_name=name)
    return fn
