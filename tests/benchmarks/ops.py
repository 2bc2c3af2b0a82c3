"""Times every Op's XLA implementation against its reference on this machine's CPU.

    JAX_PLATFORMS=cpu python tests/benchmarks/ops.py
    JAX_PLATFORMS=cpu python tests/benchmarks/ops.py --op gated_delta_rule --shape 0.8b --rounds 15

Both run in turns (reference, XLA, reference, XLA, ...), so that a change of the machine's speed meets both; the table
has medians. `floor` is the Op's FLOPs at the speed of a large square matrix product of the same type on this machine:
no implementation that does the counted work can be much faster.
"""

import importlib
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
from absl import app, flags
from timing import gemm_flops_per_s, seconds

import jaxsplice.kernels

OP = flags.DEFINE_string("op", "", "Only Ops whose folder name contains this.")
SHAPE = flags.DEFINE_string("shape", "", "Only shapes whose name contains this; without it, tiny, small and 0.8b.")
ROUNDS = flags.DEFINE_integer("rounds", 5, "Turns of each implementation.")
TURN_S = flags.DEFINE_float("turn_s", 0.1, "Length of a turn: as many calls as fit of the slowest, at least one.")

QUICK = ("tiny", "small", "0.8b")
MAX_BYTES = 2 * 2**30


def main(argv):
    """Print the table."""
    del argv
    peak = {dtype: gemm_flops_per_s(dtype) for dtype in (jnp.float32, jnp.bfloat16)}
    print("JAX", jax.__version__, ", ".join(f"{d.__name__} {p / 1e9:.0f} GFLOP/s" for d, p in peak.items()))
    print(f"{'op':18}{'shape':36}{'reference ms':>14}{'XLA ms':>10}{'ratio':>8}{'floor ms':>10}")
    for op in ops():
        for name, (avals, static) in part(op, "shapes").SHAPES.items():
            work = part(op, "cost").cost(*avals, **static)
            if not wanted(name) or work["hbm_bytes_read"] > MAX_BYTES:
                continue
            args = sample(op, avals, static)
            calls = [jitted(getattr(part(op, module), op), args, static) for module in ("reference", "xla")]
            reference_s, xla_s = seconds(calls, ROUNDS.value, TURN_S.value)
            floor_s = work["flops"] / peak[avals[0].dtype.type]
            ratio = reference_s / xla_s
            print(
                f"{op:18}{name:36}{reference_s * 1e3:14.3f}{xla_s * 1e3:10.3f}{ratio:8.2f}{floor_s * 1e3:10.3f}",
                flush=True,
            )


def ops() -> list[str]:
    """Folder names of the Ops that have an XLA implementation."""
    folders = pathlib.Path(jaxsplice.kernels.__path__[0]).iterdir()
    return sorted(f.name for f in folders if (f / "xla.py").exists() and OP.value in f.name)


def part(op: str, module: str):
    """A module of an Op's folder."""
    return importlib.import_module(f"jaxsplice.kernels.{op}.{module}")


def wanted(shape: str) -> bool:
    """Whether the flags ask for a shape of that name."""
    return SHAPE.value in shape if SHAPE.value else any(word in shape for word in QUICK)


def sample(op: str, avals, static) -> list:
    """Random arguments: the Op's own, or standard normal ones."""
    rng = np.random.default_rng(0)
    own = getattr(part(op, "shapes"), "sample", None)
    if own is not None:
        return [jnp.asarray(x) for x in own(rng, *avals, **static)]
    return [None if a is None else jnp.asarray(rng.standard_normal(a.shape), a.dtype) for a in avals]


def jitted(function, args: list, static: dict):
    """A call of a jitted function with these arguments."""
    call = jax.jit(lambda *args: function(*args, **static))
    return lambda: call(*args)


if __name__ == "__main__":
    app.run(main)
