"""The model with rows and experts spread over the devices of one mesh axis."""

from collections.abc import Callable

import equinox as eqx
import jax
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from .cache import Cache, StackedCache, init_cache
from .config import Config
from .model import forward
from .moe import MoE
from .params import Params, StackedParams
from .stacked import stack_blocks


def param_specs(params: Params | StackedParams, axis: str) -> Params | StackedParams:
    """Where parameters lie: experts are spread over `axis`, everything else is on every device.

    Args:
        params: parameters in either form; arrays or `jax.ShapeDtypeStruct`.
        axis: the mesh axis.

    Returns:
        The same tree with a `jax.sharding.PartitionSpec` at each leaf.
    """
    experts = P(None, axis) if isinstance(params, StackedParams) else P(axis)

    def spec(node):
        specs = jax.tree.map(lambda _: P(), node)
        if isinstance(node, MoE):
            specs = eqx.tree_at(lambda p: (p.w_gate, p.w_up, p.w_down), specs, (experts, experts, experts))
        return specs

    return jax.tree.map(spec, params, is_leaf=lambda node: isinstance(node, MoE))


def cache_specs(cache: Cache | StackedCache, axis: str) -> Cache | StackedCache:
    """Where a cache lies: its rows are spread over `axis`."""
    rows = P(None, axis) if isinstance(cache, StackedCache) else P(axis)
    return jax.tree.map(lambda _: rows, cache)


def expert_parallel(mesh: Mesh, axis: str) -> Callable:
    """`forward` with rows and experts spread over one mesh axis: attention by rows, experts by expert.

    Args:
        mesh: the devices.
        axis: the mesh axis; its size n divides the number of rows and of experts.

    Returns:
        A function with the arguments of `forward` (without `expert_axis`) and the same, global, results.  It may be
        jitted; arguments are taken from wherever they lie, `param_specs` and `cache_specs` say where they should.
        Per mixture of experts it gathers hidden states, expert ids and expert weights of all rows over the axis and
        sums the results over it.

    Raises:
        ValueError: the mesh has no such axis, or n does not divide rows or experts.

    Example:
        >>> mesh = jax.make_mesh((1,), ("x",))
        >>> run = jax.jit(expert_parallel(mesh, "x"))  # run(params, config, ids) -> logits, cache
    """
    if axis not in mesh.shape:
        raise ValueError(f"expert_parallel: the mesh has axes {tuple(mesh.shape)}, not {axis!r}; name one of them")

    def parallel_forward(
        params, config: Config, ids, positions=None, mask=None, cache=None, logits: str = "all", taps: bool = False
    ):
        _check_divisible(config, ids.shape[0], axis, mesh.shape[axis])
        if cache is None:
            cache = init_cache(config, ids.shape[0], ids.shape[1], params.embed.dtype)
            cache = stack_blocks(cache) if isinstance(params, StackedParams) else cache

        def local_forward(params, ids, positions, mask, cache):
            return forward(params, config, ids, positions, mask, cache, logits, taps, expert_axis=axis)

        rows, caches = P(axis), cache_specs(cache, axis)
        three_axes = positions is not None and positions.ndim == 3
        args = (params, ids, positions, mask, cache)
        specs = (param_specs(params, axis), rows, P(None, axis) if three_axes else rows, rows, caches)
        run = jax.shard_map(
            local_forward, mesh=mesh, in_specs=specs, out_specs=(rows, caches, rows) if taps else (rows, caches)
        )
        return run(*_place(args, specs, mesh))

    return parallel_forward


def _place(args: tuple, specs: tuple, mesh: Mesh) -> tuple:
    """Arguments where `specs` say.  Axes of the explicit type ask for that; `jax.shard_map` does it for the others."""
    if AxisType.Explicit not in mesh.axis_types:
        return args
    specs = jax.tree.broadcast(specs, args)
    return jax.tree.map(lambda arg, spec: jax.reshard(arg, NamedSharding(mesh, spec)), args, specs)


def _check_divisible(config: Config, rows: int, axis: str, size: int) -> None:
    if rows % size:
        raise ValueError(f"expert_parallel: {rows} rows of ids do not divide over {size} devices of {axis!r}; pad ids")
    if config.num_experts % size:
        raise ValueError(
            f"expert_parallel: {config.num_experts} experts do not divide over the {size} devices of {axis!r}; "
            "use an axis whose size divides num_experts"
        )
