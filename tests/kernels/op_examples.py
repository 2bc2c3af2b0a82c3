"""Small Ops for the tests of the primitive."""

import jax
import jax.numpy as jnp
import numpy as np

from jaxsplice.kernels import Implementation, Op

MARK = 100.0  # an implementation that adds it can be told from the reference
X = np.linspace(-1.0, 1.0, 6, dtype=np.float32).reshape(2, 3)
W = np.linspace(-0.5, 1.5, 12, dtype=np.float32).reshape(3, 4)
B = np.linspace(1.0, 2.0, 4, dtype=np.float32)


def layer_reference(x, w, bias=None, *, power=1):
    """tanh(x @ w) ** power + bias."""
    y = jnp.tanh(x @ w) ** power
    return y if bias is None else y + bias


layer = Op("layer", layer_reference)


def marked_op(**options) -> Op:
    """An Op whose implementations say by what they add which of them ran."""
    implementations = (
        Implementation("elsewhere", lambda x: jnp.sin(x) + 3 * MARK, platforms=("tpu",)),
        Implementation(
            "wide", lambda x: jnp.sin(x) + 2 * MARK, supports=lambda x: None if x.size > 4 else "x is small"
        ),
        Implementation("small", lambda x: jnp.sin(x) + MARK),
    )
    return Op("marked", jnp.sin, implementations=implementations, **options)


def primitives(fn, *args) -> list[str]:
    """Names of the equations of a function, and of those inside them."""

    def names(jaxpr):
        for eqn in jaxpr.eqns:
            yield eqn.primitive.name
            for value in jax.tree.leaves(eqn.params, is_leaf=lambda v: hasattr(v, "eqns")):
                if hasattr(value, "eqns") and "op" not in eqn.params:
                    yield from names(value)

    return list(names(jax.make_jaxpr(fn)(*args)))


def close(found, expected, rtol=1e-5):
    """Equal pytrees up to a few roundings."""
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=rtol, atol=1e-6), found, expected)
