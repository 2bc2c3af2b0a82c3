"""RMS norm followed by a silu gate."""

from jaxsplice.kernels.op import Op, Tolerance

from . import cost, reference, shapes

gated_rms_norm = Op(
    "gated-rms-norm",
    reference.gated_rms_norm,
    cost=cost.cost,
    tolerance=Tolerance(1e-6, 1e-2, "one row sum in float32, two roundings to the model's type"),
    shapes=shapes.SHAPES,
)
