"""SwiGLU as an XLA program: two products, as the reference writes it.

On a CPU nothing is gained by packing. On two cores, milliseconds for reference / weights joined side by side / weights
stacked as a batch, in JAX 0.12 (0.10 has the same order):

    rows x D x F          float32                 bfloat16
    1024 x 1024 x 3584     81 /  92 / 148          44 /  46 /  61
    1024 x 4096 x 1024     92 / 101 / 142          45 /  46 /  71
      64 x 1024 x 3584    6.5 / 10.0 / 20         4.1 / 5.2 / 9.8
       1 x 1024 x 3584   0.72 / 2.2 / 12          2.0 / 5.8 / 6.5

The products already run at the machine's peak, and joining the weights costs a copy of both.
"""

from jax import lax
from jaxtyping import Array, Float

from .reference import swiglu as two_products


def swiglu(
    x: Float[Array, "*rows D"],
    w_gate: Float[Array, "D F"],
    w_up: Float[Array, "D F"],
    *,
    precision: lax.PrecisionLike = None,
) -> Float[Array, "*rows F"]:
    """Compute silu(x w_gate) * (x w_up) with two products.

    Args:
        x: rows of D features.
        w_gate: weights of the gate.
        w_up: weights of what is gated.
        precision: of both products.

    Returns:
        Rows of F features.
    """
    return two_products(x, w_gate, w_up, precision=precision)
