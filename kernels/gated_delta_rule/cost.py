"""What the gated delta rule costs when the state stays on the chip."""

from jax import ShapeDtypeStruct


def cost(
    q: ShapeDtypeStruct,
    k: ShapeDtypeStruct,
    v: ShapeDtypeStruct,
    g: ShapeDtypeStruct,
    beta: ShapeDtypeStruct,
    state: ShapeDtypeStruct,
) -> dict[str, int]:
    """Work of an ideal delta rule: each input read once, outputs and state written once.

    FLOPs are those of the recurrence: decay 1, read 2, write 2, output 2 per state element and token. Chunks of C
    tokens need 6 + 4 C/DV + 4 C/DK instead, nearly all of it in matrix products.

    Args:
        q: queries, [B, T, H, DK].
        k: keys, [B, T, H, DK].
        v: values, [B, T, H, DV].
        g: logarithm of the decay, [B, T, H].
        beta: strength of the write, [B, T, H].
        state: [B, H, DK, DV].

    Returns:
        flops, hbm_bytes_read, hbm_bytes_written, link_bytes and vmem_bytes (one head's state in float32).

    Example:
        >>> import jax
        >>> of = lambda *shape: jax.ShapeDtypeStruct(shape, "float32")
        >>> cost(of(1, 9, 2, 4), of(1, 9, 2, 4), of(1, 9, 2, 8), of(1, 9, 2), of(1, 9, 2), of(1, 2, 4, 8))["flops"]
        4032
    """
    tokens = v.shape[1]
    return {
        "flops": 7 * tokens * state.size,
        "hbm_bytes_read": sum(a.size * a.dtype.itemsize for a in (q, k, v, g, beta, state)),
        "hbm_bytes_written": v.size * v.dtype.itemsize + 4 * state.size,
        "link_bytes": 0,
        "vmem_bytes": 4 * state.shape[2] * state.shape[3],
    }
