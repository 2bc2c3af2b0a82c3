"""The gated delta rule: an associative memory that decays, corrects and is read once per token."""

from jaxsplice.kernels.op import Implementation, Op, Tolerance

from . import cost, reference, shapes, xla

gated_delta_rule = Op(
    "gated-delta-rule",
    reference.gated_delta_rule,
    implementations=(Implementation("xla", xla.gated_delta_rule),),
    cost=cost.cost,
    tolerance=Tolerance(2e-6, 2e-2, "a chunk's tokens are solved together: 2e-6 on the oracle's operators"),
    shapes=shapes.SHAPES,
    sample=shapes.sample,
    derivative="xla",
)
