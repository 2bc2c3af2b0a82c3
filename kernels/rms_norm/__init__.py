"""RMS norm, plain and zero-centred."""

from jaxsplice.kernels.op import Op, Tolerance

from . import cost, reference, shapes

rms_norm = Op(
    "rms-norm",
    reference.rms_norm,
    cost=cost.cost,
    tolerance=Tolerance(1e-6, 1e-2, "one row sum in float32, one rounding at the end"),
    shapes=shapes.SHAPES,
)
