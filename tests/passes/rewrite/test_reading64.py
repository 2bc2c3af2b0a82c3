"""The float64 reading: depthwise convolutions are summed by taps, and that is the convolution."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from jaxsplice.passes.rewrite.reading64 import read64

LAYOUTS = [("NWC", "WIO", "NWC"), ("NCW", "OIW", "NCW"), ("CWN", "IWO", "WNC")]


@pytest.mark.parametrize("layout", LAYOUTS, ids=["-".join(names) for names in LAYOUTS])
@pytest.mark.parametrize("padding", [(3, 0), (0, 0), (2, 1), (-1, 2)])
@pytest.mark.parametrize(("taps", "stride", "dilation"), [(1, 1, 1), (4, 1, 1), (2, 2, 1), (3, 1, 2), (4, 2, 2)])
def test_depthwise_convolutions(layout, padding, taps, stride, dilation):
    rng, sizes = np.random.default_rng(0), {"N": 2, "C": 6, "W": 11}
    x = rng.standard_normal([sizes[axis] for axis in layout[0]]).astype(np.float32)
    w = rng.standard_normal([{"W": taps, "I": 1, "O": 6}[axis] for axis in layout[1]]).astype(np.float32)

    def convolve(x, w):
        return lax.conv_general_dilated(
            x, w, (stride,), [padding], rhs_dilation=(dilation,), dimension_numbers=layout, feature_group_count=6
        )

    (got,) = read64(jax.make_jaxpr(convolve)(x, w), [x, w])
    assert got.dtype == np.float64
    np.testing.assert_allclose(got, convolve(jnp.asarray(x), jnp.asarray(w)), atol=1e-5)
