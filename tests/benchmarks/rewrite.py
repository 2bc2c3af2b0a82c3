"""Times the engine alone: a closed jaxpr in, a closed jaxpr out, on the work that peers were timed on.

    JAX_PLATFORMS=cpu python tests/benchmarks/rewrite.py [--layers=4,16,64,256] [--peers=path/to/bench_peers]

CPU time, least of five runs, warm: patterns, proofs and places are known; tracing, proofs, lowering are not in it. The
layers are those of the peers' benchmark: attention and SwiGLU with tiny tensors, so that only graph work counts. With
--peers, the floor prototype found there (an anchor-indexed matcher without emission) runs beside in the same process.
"""

import gc
import math
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np
from absl import app, flags, logging

import jaxsplice
from jaxsplice.passes.pipeline import ApplyRules, Pipeline
from jaxsplice.passes.rewrite.drive import Context

LAYERS = flags.DEFINE_list("layers", ["4", "16", "64", "256"], "Numbers of layers.")
PEERS = flags.DEFINE_string("peers", None, "Folder of the peers' benchmark, for the floor.")
WIDTH = 16
X = jax.ShapeDtypeStruct((8, WIDTH), jnp.float32)
ENGINE = "normalize,raise,fuse,place,cleanup"


def rms(x, g):
    """Root mean square norm."""
    return x * jax.lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-6) * g


def layer(x, p):
    """Attention and SwiGLU behind norms."""
    h = rms(x, p[0])
    q, k, v = h @ p[1], h @ p[2], h @ p[3]
    x = x + (jax.nn.softmax((q @ k.T) * 0.25, -1) @ v) @ p[4]
    h = rms(x, p[5])
    return x + (jax.nn.silu(h @ p[6]) * (h @ p[7])) @ p[8]


def stack(layers: int):
    """The closed jaxpr of a stack of layers."""
    m, g = jax.ShapeDtypeStruct((WIDTH, WIDTH), jnp.float32), jax.ShapeDtypeStruct((WIDTH,), jnp.float32)
    params = [[g, m, m, m, m, g, m, m, m]] * layers

    def run(params, x):
        for p in params:
            x = layer(x, p)
        return x

    return jax.make_jaxpr(run)(params, X)


def never(i: int) -> jaxsplice.Rule:
    """One of many rules with the anchors of real ones, that match nothing here."""
    c = 2.0 + i

    def before(x, a, b):
        return jax.nn.silu(jnp.tanh(x @ a) * c) * jnp.sin(x @ b)

    return jaxsplice.Rule(
        f"never-{i}",
        before,
        before,
        cases=[jaxsplice.Case(X, *[jax.ShapeDtypeStruct((WIDTH, WIDTH), jnp.float32)] * 2)],
    )


def least(run, reps: int = 5) -> float:
    """CPU seconds of the fastest run, the collector of garbage held."""
    best = math.inf
    for _ in range(reps):
        gc.collect()
        gc.disable()
        started = time.process_time()
        run()
        best = min(best, time.process_time() - started)
        gc.enable()
    return best


def row(name: str, closed, passes) -> float:
    """Time one pipeline on one program; gives microseconds per equation."""
    graph = jaxsplice.Graph.from_jaxpr(closed)
    eqns = sum(graph.primitives().values())
    cold = time.process_time()
    first = jaxsplice.rewrite(graph, passes)
    cold = time.process_time() - cold
    seconds = least(lambda: jaxsplice.rewrite(graph, passes))
    counts = ", ".join(f"{k} {v}" for k, v in first.report.counts.items()) or "none"
    print(f"{name:34}{eqns:9,}{cold * 1e3:10.1f}{seconds * 1e3:10.2f}{1e6 * seconds / eqns:9.2f}  {counts}", flush=True)
    return seconds


def chain(length: int):
    """A long chain of sines."""

    def run(x):
        for _ in range(length):
            x = jnp.sin(x)
        return x

    return jax.make_jaxpr(run)(X)


def nested(depth: int):
    """Calls within calls, a SwiGLU at the bottom."""

    def fn(x, a, b):
        return jax.nn.silu(x @ a) * (x @ b)

    for i in range(depth):
        inner = fn
        fn = jax.jit(lambda x, a, b, inner=inner, i=i: inner(x, a, b))
    w = jax.ShapeDtypeStruct((WIDTH, WIDTH), jnp.float32)
    return jax.make_jaxpr(fn)(X, w, w)


def shared(calls: int):
    """One jaxpr called many times."""
    inner = jax.jit(lambda x, a, b: jax.nn.silu(x @ a) * (x @ b))

    def run(x, a, b):
        for _ in range(calls):
            x = inner(x, a, b)
        return x

    w = jax.ShapeDtypeStruct((WIDTH, WIDTH), jnp.float32)
    return jax.make_jaxpr(run)(X, w, w)


def diagnosed(name: str, rules) -> None:
    """Rules without end: how long until they are found out, and what is said."""
    program = jaxsplice.Graph.from_jaxpr(chain(10_000))
    pipeline = Pipeline((ApplyRules("raise", tuple(rules)),))
    started, said = time.process_time(), "nothing was said"
    try:
        pipeline.run(program, Context(target=jaxsplice.Target.parse("cpu")))
    except jaxsplice.JaxspliceError as error:
        said = str(error)
    print(f"{name:34}{time.process_time() - started:19.2f} s  {said[:80]}", flush=True)


def floor(layers: int) -> None:
    """The peers' prototype on the same program."""
    sys.path.insert(0, PEERS.value)
    import floor as prototype

    closed, w = stack(layers), np.zeros((WIDTH, WIDTH), np.float32)
    pattern = prototype.Pattern(lambda x, a, b: jax.nn.silu(x @ a) * (x @ b), np.zeros((8, WIDTH), np.float32), w, w)
    seconds = least(lambda: prototype.rewrite(prototype.graph(closed), pattern, "swiglu"))
    eqns = len(prototype.graph(closed).ops)
    print(f"{f'L={layers} floor, nothing emitted':34}{eqns:9,}{'':10}{seconds * 1e3:10.2f}{1e6 * seconds / eqns:9.2f}")


def main(argv):
    """Print the table."""
    del argv
    logging.set_verbosity(logging.ERROR)
    sys.setrecursionlimit(100_000)  # JAX traces nested calls by recursion
    print(f"JAX {jax.__version__}; CPU ms, us per equation")
    print(f"{'program':34}{'eqns':>9}{'first ms':>10}{'ms':>10}{'us/eqn':>9}  matches")
    for layers in map(int, LAYERS.value):
        closed = stack(layers)
        row(f"L={layers} one rule", closed, "raise{swiglu}")
        row(f"L={layers} default pipeline", closed, ENGINE)
        if PEERS.value:
            floor(layers)
    for count in (1, 10, 50):
        rules = [never(i) for i in range(count)]
        row(f"L=64, {count} rules that never match", stack(64), rules)
    row("10,000-long chain", chain(10_000), ENGINE)
    row("200 nested calls", nested(200), ENGINE)
    row("one jaxpr called 500 times", shared(500), ENGINE)
    sine = jaxsplice.Case(X)
    diagnosed("a rule that makes itself", [jaxsplice.Rule("again", jnp.sin, lambda x: jnp.sin(x) * 1.0, cases=[sine])])
    there = jaxsplice.Rule("there", jnp.sin, lambda x: jnp.cos(x - math.pi / 2), cases=[sine])
    back = jaxsplice.Rule("back", jnp.cos, lambda x: jnp.sin(x + math.pi / 2), cases=[sine])
    diagnosed("two rules that undo each other", [there, back])


if __name__ == "__main__":
    app.run(main)
