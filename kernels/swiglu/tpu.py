"""SwiGLU on TPU: which calls the Pallas kernel serves, and the call."""

import math

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from .tpu_kernel import VMEM_BUDGET_BYTES, choose_blocks, swiglu_tiles

SERVED_DTYPES = (jnp.bfloat16, jnp.float32)


def supports(x, w_gate, w_up, *, precision: lax.PrecisionLike = None) -> str | None:
    """Whether the kernel can run.

    Args:
        x: the rows, or anything with their shape and dtype.
        w_gate: weights of the gate, likewise.
        w_up: weights of what is gated, likewise.
        precision: of both products.

    Returns:
        None when it can, else the reason in a sentence.

    Example:
        >>> import jax
        >>> x, w = jax.ShapeDtypeStruct((8, 128), "int8"), jax.ShapeDtypeStruct((128, 256), "int8")
        >>> supports(x, w, w)
        'x is int8; the kernel takes bfloat16 and float32'
    """
    if w_gate.ndim != 2 or w_gate.shape != w_up.shape or x.ndim < 1 or x.shape[-1] != w_gate.shape[0]:
        return f"x {x.shape}, w_gate {w_gate.shape} and w_up {w_up.shape} are not [..., D], [D, F] and [D, F]"
    if x.dtype not in SERVED_DTYPES:
        return f"x is {x.dtype}; the kernel takes bfloat16 and float32"
    if not x.dtype == w_gate.dtype == w_up.dtype:
        return f"x is {x.dtype}, w_gate {w_gate.dtype} and w_up {w_up.dtype}; the kernel takes one type for all three"
    rows = math.prod(x.shape[:-1])
    if 0 in (rows, *w_gate.shape):
        return f"x {x.shape} and w_gate {w_gate.shape} leave nothing to compute"
    if x.dtype == jnp.float32 and canonical_precision(precision) not in (None, "DEFAULT", "HIGHEST"):
        return f"precision is {precision}; the TPU kernel language has DEFAULT and HIGHEST for float32"
    if choose_blocks(rows, w_gate.shape[0], w_gate.shape[1], x.dtype.itemsize) is None:
        return f"no tiles of x {x.shape} and w_gate {w_gate.shape} fit {VMEM_BUDGET_BYTES >> 20} MiB of VMEM"
    return None


def canonical_precision(precision: lax.PrecisionLike) -> str | None:
    """The name of the coarsest precision asked for, or None; pairs must be equal on both sides to have a name."""
    if isinstance(precision, tuple):
        left, right = (canonical_precision(p) for p in precision)  # pyright: ignore[reportArgumentType]
        return left if left == right else f"{left} and {right}"
    if precision is None:
        return None
    return lax.Precision(precision).name


def swiglu(
    x: Float[Array, "*rows D"],
    w_gate: Float[Array, "D F"],
    w_up: Float[Array, "D F"],
    *,
    precision: lax.PrecisionLike = None,
    interpret: bool = False,
) -> Float[Array, "*rows F"]:
    """Compute silu(x w_gate) * (x w_up) with the Pallas kernel.

    Products, gate and multiplication are float32, with one rounding at the end; the reference rounds each to x's type.
    Not differentiable: the derivative is the reference's.

    Args:
        x: rows of D features.
        w_gate: weights of the gate.
        w_up: weights of what is gated.
        precision: of both products; means nothing for bfloat16.
        interpret: run on the host, for tests.

    Returns:
        Rows of F features in x's type.

    Raises:
        ValueError: the kernel cannot run; the message is `supports`'s reason.
    """
    reason = supports(x, w_gate, w_up, precision=precision)
    if reason is not None:
        raise ValueError(f"swiglu: {reason}; use the reference or the XLA implementation")
    rows, (features, width) = x.reshape(-1, x.shape[-1]), w_gate.shape
    blocks = choose_blocks(rows.shape[0], features, width, x.dtype.itemsize)
    assert blocks is not None  # `supports` found some
    name = canonical_precision(precision) if x.dtype == jnp.float32 else None
    out = swiglu_tiles(
        rows,
        w_gate,
        w_up,
        blocks=blocks,
        precision=None if name is None else lax.Precision[name],
        interpret=interpret,
    )
    return out.reshape(*x.shape[:-1], width)
