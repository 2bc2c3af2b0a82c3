import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from jaxsplice.kernels.swiglu import reference, tpu, tpu_kernel, xla

from . import float64_truth

ON_HOST = pytest.mark.parametrize("swiglu", [reference.swiglu, xla.swiglu], ids=["reference", "xla"])
# Largest |difference| allowed, as a part of the largest |result|.
LIMITS = {"float32": 2e-6, "bfloat16": 2e-2}


def arguments(lead, features, width, dtype=jnp.float32, seed=0):
    rng = np.random.default_rng(seed)
    shapes = ((*lead, features), (features, width), (features, width))
    return [jnp.asarray(rng.normal(size=s) / (s[0] ** 0.5 if len(s) == 2 else 1), dtype) for s in shapes]


def close(got, truth, limit):
    assert np.abs(np.asarray(got, np.float64) - truth).max() <= limit * np.abs(truth).max()


@ON_HOST
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("lead", [(), (1,), (2, 3), (0,)])
def test_equals_float64(swiglu, lead, dtype):
    args = arguments(lead, 48, 80, dtype)
    out = swiglu(*args)
    assert (out.shape, out.dtype) == ((*lead, 80), args[0].dtype)
    if out.size:
        close(out, float64_truth.swiglu(*args), LIMITS[dtype])


def test_precision_reaches_both_products():
    text = str(jax.make_jaxpr(lambda *a: xla.swiglu(*a, precision="highest"))(*arguments((2,), 8, 16)))
    assert text.count("Precision.HIGHEST") == 4  # both sides of two products


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    ("rows", "features", "width", "blocks"),
    [
        (5, 48, 80, None),
        (300, 200, 300, (128, 128, 128)),
        (129, 384, 256, (128, 128, 128)),
        (1, 130, 130, (1, 128, 128)),
        (40, 300, 20, (16, 20, 128)),
        (256, 256, 256, (256, 128, 256)),
    ],
    ids=lambda value: str(value).replace(" ", ""),
)
def test_kernel_interpreted_equals_float64(rows, features, width, blocks, dtype):
    args = arguments((rows,), features, width, dtype)
    if blocks is None:
        out = tpu.swiglu(*args, interpret=True)
    else:
        out = tpu_kernel.swiglu_tiles(*args, blocks=tpu_kernel.Blocks(*blocks), interpret=True)
    assert (out.shape, out.dtype) == ((rows, width), args[0].dtype)
    close(out, float64_truth.swiglu(*args), 4e-3 if dtype == "bfloat16" else LIMITS[dtype])


def test_kernel_takes_any_leading_axes():
    args = arguments((2, 3, 4), 32, 128)
    close(tpu.swiglu(*args, interpret=True), float64_truth.swiglu(*args), LIMITS["float32"])


def test_kernel_masks_both_sides_beyond_the_last_feature():
    # The interpreter fills what lies beyond an array with NaN, as hardware may.
    args = arguments((16,), 130, 128)
    out = tpu_kernel.swiglu_tiles(*args, blocks=tpu_kernel.Blocks(16, 128, 128), interpret=True)
    assert np.isfinite(out).all()


SERVED = {"x": ((8, 128), "bfloat16"), "w_gate": ((128, 256), "bfloat16"), "w_up": ((128, 256), "bfloat16")}


@pytest.mark.parametrize(
    ("change", "precision", "reason"),
    [
        ({"x": ((8, 128), "int8")}, None, "x is int8; the kernel takes bfloat16 and float32"),
        ({"w_up": ((128, 256), "float32")}, None, "one type for all three"),
        ({"w_up": ((128, 128), "bfloat16")}, None, "are not"),
        ({"x": ((8, 64), "bfloat16")}, None, "are not"),
        ({"x": ((0, 128), "bfloat16")}, None, "nothing to compute"),
        ({name: (shape, "float32") for name, (shape, _) in SERVED.items()}, "high", "DEFAULT and HIGHEST"),
    ],
)
def test_says_why_it_cannot_run(change, precision, reason):
    given = {n: jax.ShapeDtypeStruct(*a) for n, a in (SERVED | change).items()}
    assert reason in tpu.supports(*given.values(), precision=precision)
    arrays = [jnp.zeros(a.shape, a.dtype) for a in given.values()]
    with pytest.raises(ValueError, match=r"^swiglu: .*use the reference"):
        tpu.swiglu(*arrays, precision=precision, interpret=True)


@pytest.mark.parametrize("precision", [None, "highest", lax.Precision.DEFAULT, ("highest", "highest")])
def test_serves_float32_at_the_precisions_the_kernel_language_has(precision):
    args = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape, _ in SERVED.values()]
    assert tpu.supports(*args, precision=precision) is None


@pytest.mark.parametrize("itemsize", [2, 4])
@pytest.mark.parametrize(
    "shape", [(1, 1024, 3584), (64, 4096, 1024), (1024, 5120, 17408), (100_000, 7, 9), (17, 33_000, 65_000)], ids=str
)
def test_blocks_fit_the_budget_and_the_hardware_tile(shape, itemsize):
    rows, features, width = shape
    blocks = tpu_kernel.choose_blocks(rows, features, width, itemsize)
    assert tpu_kernel.vmem_bytes(blocks, itemsize) <= tpu_kernel.VMEM_BUDGET_BYTES
    for size, axis in zip(blocks, (rows, width, features)):
        assert size == axis or size % 128 == 0


def test_shared_expert_reads_everything_once():
    blocks = tpu_kernel.choose_blocks(1024, 4096, 1024, itemsize=2)
    once = 2 * (1024 * 4096 + 2 * 4096 * 1024 + 1024 * 1024)
    assert tpu_kernel.hbm_bytes(1024, 4096, 1024, 2, blocks) == once
