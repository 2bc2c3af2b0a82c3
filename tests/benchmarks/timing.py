"""Timing side by side: calls run in turns, so that a change of the machine's speed meets all of them."""

import statistics
import time
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp


def seconds(calls: Sequence[Callable], rounds: int, turn_s: float) -> list[float]:
    """Median seconds of each call.

    Args:
        calls: functions without arguments that return arrays; each is called once before, to compile.
        rounds: turns of each.
        turn_s: length of a turn: as many calls as fit of the slowest, at least one.
    """
    slowest_s = 0.0
    for call in calls:
        jax.block_until_ready(call())
        slowest_s = max(slowest_s, _turn(call, 1))
    count = max(1, int(turn_s / slowest_s))
    turns = [[_turn(call, count) for call in calls] for _ in range(rounds)]
    return [statistics.median(column) for column in zip(*turns)]


def _turn(call: Callable, count: int) -> float:
    start = time.perf_counter()
    for _ in range(count):
        jax.block_until_ready(call())
    return (time.perf_counter() - start) / count


def stream_bytes_per_s(size: int = 1 << 26) -> float:
    """Speed of reading a large float32 array once."""
    x, total = jnp.ones(size, jnp.float32), jax.jit(jnp.sum)
    jax.block_until_ready(total(x))
    return 4 * size / min(_turn(lambda: total(x), 1) for _ in range(5))


def gemm_flops_per_s(dtype, size: int = 2048) -> float:
    """Speed of a large square matrix product."""
    x, dot = jnp.ones((size, size), dtype), jax.jit(jnp.dot)
    jax.block_until_ready(dot(x, x))
    return 2 * size**3 / min(_turn(lambda: dot(x, x), 1) for _ in range(5))
