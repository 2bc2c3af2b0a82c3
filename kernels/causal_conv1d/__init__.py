"""Causal depthwise convolution over time, with or without carried tokens."""

from jaxsplice.kernels.op import Implementation, Op, Tolerance

from . import cost, reference, shapes, xla

causal_conv1d = Op(
    "causal-conv1d",
    reference.causal_conv1d,
    implementations=(Implementation("xla", xla.causal_conv1d),),
    cost=cost.cost,
    tolerance=Tolerance(1e-6, 2e-2, "K products summed in another order"),
    shapes=shapes.SHAPES,
)
