"""What every spelling has to keep: its numbers."""

import jax
import numpy as np


def limit(value) -> float:
    """A few roundings of the results' type."""
    return 3e-2 if value.dtype == "bfloat16" else 2e-5


def assert_computes_the_same(result, fn, args):
    """The rewritten program gives what the function gave, in the same types."""
    before, after = jax.tree.leaves(jax.jit(fn)(*args)), jax.tree.leaves(jax.jit(result.after)(*args))
    for a, b in zip(before, after, strict=True):
        assert (a.shape, a.dtype) == (b.shape, b.dtype)
        np.testing.assert_allclose(np.float64(a), np.float64(b), rtol=limit(a), atol=limit(a))
