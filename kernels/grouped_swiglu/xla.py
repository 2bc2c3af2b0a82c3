"""Grouped SwiGLU as a loop over blocks of rows, each block with the weights of the one expert it belongs to.

On CPUs `ragged_dot` multiplies every row by every expert's weights and masks, E times the work. Two cores, float32,
milliseconds for `ragged_dot` / blocks:

    rows x D x F, experts         JAX 0.10         JAX 0.12
       64 x  256 x 128,   8     0.63 / 0.26      1.02 / 0.29
       64 x  256 x 128, 512      122 / 1.95       149 / 2.70
      640 x  256 x 128, 512      491 / 12         718 / 17
      640 x 1024 x 512,  32      566 / 31         549 / 32
     1024 x  256 x 256,  64      125 / 7.2        233 / 8.2
    10240 x  256 x 256,   8      159 / 22         126 / 26
    10240 x  256 x 256,  64     2555 / 59        1079 / 28
"""

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from .reference import grouped_swiglu as dense_over_groups

MIN_BLOCK, MAX_BLOCK = 8, 256

# Time of one loop step and of setting up the loop, as the FLOPs a CPU would do meanwhile.
STEP_FLOPS, SETUP_FLOPS = 5e5, 2e6


def grouped_swiglu(
    x: Float[Array, "M D"] | Float[Array, "E T D"],
    w_gate: Float[Array, "E D F"],
    w_up: Float[Array, "E D F"],
    group_sizes: Int[Array, "E"] | None = None,
    *,
    precision: lax.PrecisionLike = None,
) -> Float[Array, "M F"] | Float[Array, "E T F"]:
    """Compute the reference's function in blocks of rows, or as the reference does where the whole is too small.

    Reverse-mode differentiation works and took 0.6 times the reference's time for 640 rows of 256 x 128 with 32
    experts, but it keeps the weights of every block for the backward pass; the reference keeps them once.

    Args:
        x: with `group_sizes`, M rows sorted by expert; without, T rows for each of E experts.
        w_gate: weights of the experts' gates.
        w_up: weights of what is gated.
        group_sizes: rows of each expert, in order, adding up to M at most.
        precision: of both products.

    Returns:
        Rows of F features; zeros where a row belongs to no expert.
    """
    if group_sizes is None or not blocks_pay(x.shape[0], *w_gate.shape):
        return dense_over_groups(x, w_gate, w_up, group_sizes, precision=precision)
    rows = x.shape[0]
    block = block_rows(rows, w_gate.shape[0])
    # One block of zeros behind x: the last block may reach beyond it, and blocks without rows work there.
    padded = jnp.pad(x, ((0, block), (0, 0)))
    dtype = jnp.result_type(x, w_gate, w_up)

    operands = (x, w_gate, w_up, group_sizes)

    def one_block(row, expert):
        of_block = lax.dynamic_slice_in_dim(padded, row, block)
        gate, up = (
            jnp.dot(of_block, lax.dynamic_index_in_dim(w, expert, keepdims=False), precision=precision)
            for w in (w_gate, w_up)
        )
        return (jax.nn.silu(gate) * up).astype(dtype)

    def step(out, placed):
        row, expert, has_rows = placed
        nothing = lambda row, expert: varying_as(jnp.zeros((block, out.shape[1]), dtype), *operands)
        y = lax.cond(has_rows, one_block, nothing, row, expert)
        # What a block writes beyond its expert's rows, the next block or the mask below writes over.
        return lax.dynamic_update_slice_in_dim(out, y, row, axis=0), None

    out = varying_as(jnp.zeros((rows + block, w_gate.shape[2]), dtype), *operands)
    out, _ = lax.scan(step, out, place_blocks(group_sizes, rows, block))
    return jnp.where((jnp.arange(rows) < jnp.sum(group_sizes))[:, None], out[:rows], 0)


def varying_as(x: Float[Array, "..."], *others: Array) -> Float[Array, "..."]:
    """A constant marked as different on every device where other values are: loops and branches want equal types."""
    types = [getattr(jax.typeof(other), "manual_axis_type", None) for other in others]
    axes = {axis for found in types if found is not None for axis in found.varying}
    return lax.pcast(x, tuple(sorted(axes)), to="varying") if axes else x


def place_blocks(
    group_sizes: Int[Array, "E"], rows: int, block: int
) -> tuple[Int[Array, "blocks"], Int[Array, "blocks"], Bool[Array, "blocks"]]:
    """Cut every expert's rows into blocks, in order.

    Args:
        group_sizes: rows of each expert.
        rows: M, which bounds the sum.
        block: rows per block.

    Returns:
        For each of the most blocks there can be: its first row (M for a block without rows), its expert, and whether it
        has rows.
    """
    experts = group_sizes.shape[0]
    blocks = jnp.arange(max_blocks(rows, experts, block))
    per_expert = -(-group_sizes // block)
    ends = jnp.cumsum(per_expert)
    expert = jnp.minimum(jnp.searchsorted(ends, blocks, side="right"), experts - 1)
    within = blocks - (ends - per_expert)[expert]
    row = (jnp.cumsum(group_sizes) - group_sizes)[expert] + within * block
    has_rows = blocks < ends[-1]
    return jnp.where(has_rows, row, rows), expert, has_rows


def max_blocks(rows: int, experts: int, block: int) -> int:
    """The most blocks that M rows in E groups can need: every group may end in a part of a block."""
    return rows // block + min(experts, rows)


def block_rows(rows: int, experts: int) -> int:
    """Rows per block: about the mean rows per expert, as a power of two between MIN_BLOCK and MAX_BLOCK."""
    mean = -(-rows // experts)
    return max(MIN_BLOCK, min(MAX_BLOCK, 1 << (mean - 1).bit_length()))


def blocks_pay(rows: int, experts: int, features: int, width: int) -> bool:
    """Whether the loop over blocks beats multiplying all rows by all experts' weights."""
    if rows == 0:
        return False
    steps = max_blocks(rows, experts, block_rows(rows, experts))
    return 4.0 * rows * features * width * (experts - 1) > STEP_FLOPS * steps + SETUP_FLOPS
