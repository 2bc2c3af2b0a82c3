"""What the choice of experts costs when it is fused into one pass."""

from jax import ShapeDtypeStruct


def cost(logits: ShapeDtypeStruct, *, k: int) -> dict[str, int]:
    """Work of an ideal router: the logits read once, k weights and ids per row written once.

    Args:
        logits: scores, [..., E].
        k: experts per row.

    Returns:
        flops (per logit: maximum, difference, exponential, sum, comparison with the k-th), hbm_bytes_read,
        hbm_bytes_written, link_bytes and vmem_bytes (one row in float32).

    Example:
        >>> import jax
        >>> cost(jax.ShapeDtypeStruct((4, 16), "float32"), k=2)["hbm_bytes_written"]
        64
    """
    experts = logits.shape[-1]
    rows = logits.size // experts
    return {
        "flops": 5 * logits.size,
        "hbm_bytes_read": logits.size * logits.dtype.itemsize,
        "hbm_bytes_written": rows * k * (4 + 4),
        "link_bytes": 0,
        "vmem_bytes": 4 * experts,
    }
