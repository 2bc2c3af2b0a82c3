"""A Gated DeltaNet block between its projections: convolution, gates, norms and delta rule."""

from jaxsplice.kernels.op import Implementation, Op, Tolerance

from . import cost, reference, shapes, xla

conv1d_gdn = Op(
    "conv1d-gdn",
    reference.conv1d_gdn,
    implementations=(Implementation("xla", xla.conv1d_gdn),),
    cost=cost.cost,
    tolerance=Tolerance(5e-6, 2e-2, "the delta rule's chunks after a convolution and norms in another order"),
    shapes=shapes.SHAPES,
    derivative="xla",
)
