"""What every Op folder promises: results of equal types at every named shape, and a cost that adds up."""

import importlib
import pathlib

import jax
import pytest

import jaxsplice.kernels

FOLDERS = sorted(p.parent.name for p in pathlib.Path(jaxsplice.kernels.__path__[0]).glob("*/reference.py"))
CASES = [
    (folder, shape)
    for folder in FOLDERS
    for shape in importlib.import_module(f"jaxsplice.kernels.{folder}.shapes").SHAPES
]


def part(folder, module):
    return importlib.import_module(f"jaxsplice.kernels.{folder}.{module}")


def results(folder, module, shape):
    avals, static = part(folder, "shapes").SHAPES[shape]
    function = getattr(part(folder, module), folder)
    out = jax.eval_shape(lambda *args: function(*args, **static), *avals)
    return [(x.shape, x.dtype) for x in jax.tree.leaves(out)]


@pytest.mark.parametrize(("folder", "shape"), CASES)
def test_implementations_have_the_references_result_types(folder, shape):
    expected = results(folder, "reference", shape)
    modules = [m for m in ("xla", "tpu") if importlib.util.find_spec(f"jaxsplice.kernels.{folder}.{m}")]
    for module in modules:
        assert results(folder, module, shape) == expected, module


@pytest.mark.parametrize(("folder", "shape"), CASES)
def test_cost_counts_every_result_once(folder, shape):
    avals, static = part(folder, "shapes").SHAPES[shape]
    work = part(folder, "cost").cost(*avals, **static)
    assert set(work) == {"flops", "hbm_bytes_read", "hbm_bytes_written", "link_bytes", "vmem_bytes"}
    assert all(type(x) is int for x in work.values())
    written = sum(
        x.size * x.dtype.itemsize
        for x in jax.tree.leaves(
            jax.eval_shape(lambda *args: getattr(part(folder, "reference"), folder)(*args, **static), *avals)
        )
    )
    assert work["hbm_bytes_written"] == written
    given = sum(a.size * a.dtype.itemsize for a in avals if a is not None)
    # Experts without rows are not read; everything else is, once.
    assert work["hbm_bytes_read"] == given or (folder == "grouped_swiglu" and work["hbm_bytes_read"] < given)
    assert work["flops"] > 0
    assert work["link_bytes"] == 0
    assert 0 < work["vmem_bytes"] < 64 * 2**20


@pytest.mark.parametrize("folder", FOLDERS)
def test_has_shapes_of_small_and_large_models(folder):
    names = " ".join(part(folder, "shapes").SHAPES)
    for word in ("tiny", "397b-prefill-1024" if folder != "swiglu" else "397b-shared-prefill-1024", "decode-64"):
        assert word in names
