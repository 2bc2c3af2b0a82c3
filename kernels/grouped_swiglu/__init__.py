"""SwiGLU with one pair of weights per group of rows (the experts of a mixture)."""

from jaxsplice.kernels.op import Implementation, Op, Tolerance

from . import cost, reference, shapes, xla

grouped_swiglu = Op(
    "grouped-swiglu",
    reference.grouped_swiglu,
    implementations=(Implementation("xla", xla.grouped_swiglu, ("cpu", "cuda", "rocm")),),
    cost=cost.cost,
    tolerance=Tolerance(1e-5, 2e-2, "sums of D products in another order; bfloat16 rounds each projection"),
    shapes=shapes.SHAPES,
    sample=shapes.sample,
)
