"""Times Qwen3.5 (0.8B cut to 4 layers, random float32 weights) as it is and optimised, on this machine's CPU.

    JAX_PLATFORMS=cpu python tests/benchmarks/model.py
    JAX_PLATFORMS=cpu python tests/benchmarks/model.py --tokens 256 --rounds 9

Three programs run in turns: the reference, whose token scan uses einsum; the same with the scan's products written as
multiply and sum; and the optimised reference. `floor` is the larger of two times: the matrix products of the program
(projections, attention, logits; not the token scan) at the speed of a large square product on this machine, and the
bytes of the weights at the speed of reading a large array once. No step can be faster than that.
"""

from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
from absl import app, flags
from scan_spelling import multiply_and_sum
from timing import gemm_flops_per_s, seconds, stream_bytes_per_s

import jaxsplice
from jaxsplice.models import qwen3_5
from jaxsplice.models.qwen3_5 import gdn
from jaxsplice.passes.ir import jaxprs
from jaxsplice.runtime.commands.models import first_layers

MODEL = flags.DEFINE_string("model", "qwen3.5-0.8b", "A published configuration.")
LAYERS = flags.DEFINE_integer("layers", 4, "Layers kept.")
TOKENS = flags.DEFINE_integer("tokens", 1024, "Tokens of the prefill.")
ROUNDS = flags.DEFINE_integer("rounds", 7, "Turns of each program.")
TURN_S = flags.DEFINE_float("turn_s", 0.5, "Length of a turn: as many calls as fit of the slowest, at least one.")
STATIC = ("logits",)


def main(argv):
    """Print the table."""
    del argv
    config = first_layers(qwen3_5.Config.named(MODEL.value), LAYERS.value)
    params = qwen3_5.random_params(config, jax.random.key(0), jnp.float32)
    ids = np.random.default_rng(0).integers(0, config.vocab_size, (1, TOKENS.value), np.int32)
    peak, stream = gemm_flops_per_s(jnp.float32), stream_bytes_per_s()
    print(f"JAX {jax.__version__}, {MODEL.value} cut to {LAYERS.value} layers, float32; "
          f"{peak / 1e9:.0f} GFLOP/s, {stream / 1e9:.1f} GB/s")  # fmt: skip
    print(f"{'step':24}{'einsum ms':>10}{'mul+sum ms':>11}{'fast ms':>9}{'x einsum':>9}{'x mul+sum':>10}"
          f"{'floor ms':>9}{'x floor':>8}")  # fmt: skip
    for logits in ("last", "all"):
        row(f"prefill {TOKENS.value}, {logits} logits", params, config, ids, None, logits, peak, stream)
    cache = qwen3_5.init_cache(config, 1, TOKENS.value + 8)
    _, cache = jax.jit(qwen3_5.forward)(params, config, ids, cache=cache)
    row(f"decode after {TOKENS.value}", params, config, ids[:, :1], cache, "last", peak, stream)


def row(name, params, config, ids, cache, logits, peak, stream):
    """Time one step three ways, check that they agree, and print a line."""
    calls, outputs = [], []
    for program in (plain, plain_multiply_and_sum, optimised):
        call = program(params, config, ids, cache, logits)
        outputs.append(np.asarray(jax.block_until_ready(call())[0]))
        calls.append(call)
    for other in outputs[1:]:
        assert np.abs(other - outputs[0]).max() < 2e-3 * outputs[0].std(), f"{name}: the programs differ"
    einsum, mul_sum, fast = (1e3 * s for s in seconds(calls, ROUNDS.value, TURN_S.value))
    flops = product_flops(lambda: qwen3_5.forward(params, config, ids, cache=cache, logits=logits)[0])
    floor = 1e3 * max(flops / peak, sum(x.nbytes for x in jax.tree.leaves(params)) / stream)
    print(
        f"{name:24}{einsum:10.1f}{mul_sum:11.1f}{fast:9.1f}{einsum / fast:9.2f}{mul_sum / fast:10.2f}"
        f"{floor:9.1f}{fast / floor:8.1f}",
        flush=True,
    )


def plain(params, config, ids, cache, logits):
    """The reference as it is."""
    fn = jax.jit(lambda params, ids, cache: qwen3_5.forward(params, config, ids, cache=cache, logits=logits))
    return lambda: fn(params, ids, cache)


def plain_multiply_and_sum(params, config, ids, cache, logits):
    """The reference with its token scan's products as multiply and sum; compiled while the function is swapped."""
    with mock.patch.object(gdn, "gated_delta_rule", multiply_and_sum):
        call = plain(params, config, ids, cache, logits)
        jax.block_until_ready(call())
    return call


def optimised(params, config, ids, cache, logits):
    """The optimised reference."""
    fn = jaxsplice.optimize(qwen3_5.forward, static_argnames=STATIC)
    counts = fn.lower(params, config, ids, cache=cache, logits=logits).report.counts
    assert counts["conv1d-gdn"] == config.layer_types.count("linear_attention"), counts
    return lambda: fn(params, config, ids, cache=cache, logits=logits)


def product_flops(fn) -> float:
    """FLOPs of the matrix products of a function, those inside loops left out."""
    return _product_flops(jax.make_jaxpr(fn)().jaxpr)


def _product_flops(jaxpr) -> float:
    total = 0.0
    for eqn in jaxpr.eqns:
        if eqn.primitive.name == "dot_general":
            contracted = eqn.params["dimension_numbers"][0][0]
            lhs = eqn.invars[0].aval.shape
            total += 2.0 * eqn.outvars[0].aval.size * np.prod([lhs[d] for d in contracted])
        elif eqn.primitive.name not in ("scan", "while"):
            total += sum(_product_flops(jaxprs.open_jaxpr(inner)) for inner in jaxprs.all_jaxprs(eqn))
    return total


if __name__ == "__main__":
    app.run(main)
