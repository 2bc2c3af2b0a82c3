"""SwiGLU: two projections of the same rows, one the other's gate."""

from functools import partial

from jaxsplice.kernels.op import Implementation, Op, Tolerance

from . import cost, reference, shapes, tpu, xla

swiglu = Op(
    "swiglu",
    reference.swiglu,
    implementations=(
        Implementation(
            "tpu_kernel", tpu.swiglu, ("tpu",), tpu.supports, interpreted=partial(tpu.swiglu, interpret=True)
        ),
        Implementation("xla", xla.swiglu),
    ),
    cost=cost.cost,
    tolerance=Tolerance(1e-5, 2e-2, "sums of D products in another order; bfloat16 rounds each projection"),
    shapes=shapes.SHAPES,
)
