"""Choice of experts: softmax, top-k, weights that sum to one."""

from jaxsplice.kernels.op import Implementation, Op, Tolerance

from . import cost, reference, shapes, xla

router_top_k = Op(
    "router-top-k",
    reference.router_top_k,
    implementations=(Implementation("xla", xla.router_top_k),),
    cost=cost.cost,
    tolerance=Tolerance(1e-6, 1e-2, "a softmax over k numbers instead of a quotient of two softmaxes"),
    shapes=shapes.SHAPES,
)
