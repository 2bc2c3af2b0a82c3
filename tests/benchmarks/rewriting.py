"""Times rewriting itself: a whole 60-layer Qwen3.5-397B-A17B from abstract weights, unrolled and as a loop over blocks.

    JAX_PLATFORMS=cpu python tests/benchmarks/rewriting.py

CPU seconds of tracing and of rewriting. The first rewrite in a process pays for tracing the patterns and for all
proofs (whose wall seconds are given apart); the second finds both made.
"""

import time

import jax
import jax.numpy as jnp
from absl import app

import jaxsplice
from jaxsplice.models import qwen3_5

CONFIG = qwen3_5.Config.named("qwen3.5-397b-a17b")


def main(argv):
    """Print the table."""
    del argv
    params = qwen3_5.abstract_params(CONFIG)
    stacked = jax.eval_shape(qwen3_5.stack_blocks, params)
    print(f"JAX {jax.__version__}, {CONFIG.num_hidden_layers} layers; CPU seconds")
    print(f"{'program':24}{'eqns':>8}{'trace':>8}{'first':>8}{'proofs':>8}{'again':>8}{'us/eqn':>8}")
    row("unrolled, 1024 tokens", params, 1024)
    row("unrolled, one token", params, 1)
    row("loop, 1024 tokens", stacked, 1024)


def row(name: str, params, tokens: int) -> None:
    """Trace once, rewrite twice."""
    ids = jax.ShapeDtypeStruct((1, tokens), jnp.int32)
    cache = jax.eval_shape(lambda: qwen3_5.init_cache(CONFIG, 1, 2048)) if tokens == 1 else None
    started = time.process_time()
    graph = jaxsplice.trace(qwen3_5.forward, params, CONFIG, ids, cache=cache, logits="last", static_argnames="logits")
    traced = time.process_time()
    first = jaxsplice.rewrite(graph)
    middle = time.process_time()
    again = jaxsplice.rewrite(graph)
    ended = time.process_time()
    assert first.report.trip_counts == again.report.trip_counts
    eqns = sum(graph.primitives().values())
    proofs = first.report.seconds.get("prove", 0.0)
    print(
        f"{name:24}{eqns:8,}{traced - started:8.1f}{middle - traced:8.1f}{proofs:8.1f}{ended - middle:8.1f}"
        f"{1e6 * (ended - middle) / eqns:8.0f}",
        flush=True,
    )


if __name__ == "__main__":
    app.run(main)
