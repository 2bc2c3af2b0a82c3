"""The Op primitive under JAX's transformations: derivatives, vmap, remat, control flow, shard_map, export."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export, lax
from jax.ad_checkpoint import checkpoint_name, print_saved_residuals
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

from jaxsplice.kernels import Implementation, Op

from .op_examples import B, W, X, close, layer, layer_reference, marked_op, primitives


# ---------------------------------------------------------------- derivatives
def loss(fn):
    """A scalar function of x and w."""
    return lambda x, w: jnp.sum(jnp.sin(fn(x, w)) ** 2)


def test_derivatives_are_the_references():
    ours, theirs = loss(lambda x, w: layer(x, w, power=2)), loss(lambda x, w: layer_reference(x, w, power=2))
    close(jax.grad(ours, (0, 1))(X, W), jax.grad(theirs, (0, 1))(X, W), 1e-4)
    close(jax.jvp(ours, (X, W), (X, W)), jax.jvp(theirs, (X, W), (X, W)), 1e-4)
    value, linear = jax.linearize(lambda x: ours(x, W), X)
    close((value, linear(X)), jax.jvp(lambda x: theirs(x, W), (X,), (X,)), 1e-4)
    close(jax.jit(jax.grad(ours))(X, W), jax.grad(theirs)(X, W), 1e-4)


def test_second_derivatives_exist():
    cube = Op("cube", lambda x: x**3)
    assert float(jax.grad(jax.grad(cube))(2.0)) == 12.0
    assert float(jax.hessian(cube)(2.0)) == 12.0
    assert float(jax.jvp(jax.grad(cube), (2.0,), (1.0,))[1]) == 12.0


def test_the_node_is_gone_once_differentiated():
    assert "layer" in primitives(lambda x: layer(x, W), X)
    names = primitives(jax.grad(lambda x: layer(x, W).sum()), X)
    assert "layer" not in names and names.count("dot_general") == 2


def test_what_is_not_differentiated_stays_one_node():
    names = primitives(jax.grad(lambda x: (layer(X, W) * x.sum()).sum()), X)
    assert "layer" in names


def test_integer_results_have_no_derivative():
    op = Op("with_index", lambda x, i: (x * i, i + 1, jnp.argmax(x)))
    assert jax.grad(lambda x: op(x, jnp.int32(3))[0].sum())(X[0]).tolist() == [3.0] * 3
    _, tangents = jax.jvp(lambda x: op(x, jnp.int32(3)), (X[0],), (X[0],))
    assert [t.dtype == jax.dtypes.float0 for t in tangents] == [False, True, True]


def test_derivatives_of_an_optional_argument():
    found = jax.grad(lambda b: layer(X, W, b).sum())(B)
    close(found, 2.0 * np.ones_like(B))


def derived(name):
    """An Op whose two implementations have the wrong derivatives 7 and 9, so that one sees which is used."""

    def sloped(slope):
        fn = jax.custom_jvp(lambda x: x * 1.0)
        fn.defjvp(lambda p, t: (p[0], slope * t[0]))
        return fn

    implementations = (Implementation("seven", sloped(7.0)), Implementation("nine", sloped(9.0)))
    return Op("derived", lambda x: x * 1.0, implementations=implementations, derivative=name)


@pytest.mark.parametrize(("name", "slope"), [(None, 1.0), ("seven", 7.0), ("nine", 9.0)])
def test_an_op_may_name_the_implementation_that_gives_its_derivative(name, slope):
    op = derived(name)
    assert float(jax.grad(op)(3.0)) == slope
    assert float(jax.jit(jax.grad(op))(3.0)) == slope
    assert jax.vmap(jax.grad(op))(jnp.ones(2)).tolist() == [slope] * 2
    assert jax.grad(lambda x: jax.vmap(op)(x).sum())(jnp.ones(2)).tolist() == [slope] * 2


def test_the_reference_asked_for_gives_its_own_derivative():
    assert float(jax.grad(lambda x: derived("seven")(x, implementation=None))(3.0)) == 1.0


def test_linear_ops_can_be_transposed():
    linear = Op("linear", lambda x, w: (x @ w, 2.0 * x))
    (moved,) = jax.linear_transpose(lambda x: linear(x, jnp.asarray(W))[0], X)(jnp.ones((2, 4)))
    close(moved, np.ones((2, 4)) @ W.T)
    (both,) = jax.linear_transpose(lambda x: linear(x, jnp.asarray(W)), X)((jnp.ones((2, 4)), jnp.ones((2, 3))))
    close(both, np.ones((2, 4)) @ W.T + 2.0)


# ---------------------------------------------------------------- vmap
def test_vmap_keeps_the_node_and_computes_the_same():
    xs = np.stack([X, 2.0 * X, -X])
    fn = jax.vmap(lambda x, w: layer(x, w, power=2), in_axes=(0, None))
    assert primitives(fn, xs, W) == ["layer"]
    close(fn(xs, W), np.stack([layer_reference(x, W, power=2) for x in xs]))


@pytest.mark.parametrize("axes", [(0, 0), (2, None), (None, 1), (1, 2)])
def test_vmap_over_any_axes(axes):
    def stacked(a, axis):
        return a if axis is None else np.stack([a, 2.0 * a, -a], axis)

    args = [stacked(a, axis) for a, axis in zip((X, W), axes)]
    close(jax.vmap(layer, in_axes=axes)(*args), jax.vmap(layer_reference, in_axes=axes)(*args))


def test_nested_vmaps_are_remembered_innermost_first():
    xs, ws = np.stack([X, 2.0 * X]), np.stack([W, -W, 3.0 * W])
    fn = jax.vmap(jax.vmap(lambda x, w: layer(x, w), in_axes=(0, None)), in_axes=(None, 0))
    (node,) = jax.make_jaxpr(fn)(xs, ws).eqns
    signature = node.params["op"]
    assert signature.vmaps == ((0, None), (None, 0))
    shapes = [jax.ShapeDtypeStruct(v.aval.shape, v.aval.dtype) for v in node.invars]
    assert [a.shape for a in signature.argument_avals(shapes)] == [X.shape, W.shape]
    expected = np.stack([[layer_reference(x, w) for x in xs] for w in ws])
    close(fn(xs, ws), expected)


def test_axes_of_nested_vmaps_come_off_from_the_outside():
    xs = np.ones((5, 2, 7, 3), np.float32)
    fn = jax.vmap(jax.vmap(lambda x: layer(x, W), in_axes=1))
    (node,) = jax.make_jaxpr(fn)(xs).eqns
    shapes = [jax.ShapeDtypeStruct(v.aval.shape, v.aval.dtype) for v in node.invars]
    assert [a.shape for a in node.params["op"].argument_avals(shapes)] == [(2, 3), W.shape]
    assert fn(xs).shape == (5, 7, 2, 4)


def test_vmap_of_gradients_and_gradients_of_vmap():
    xs = np.stack([X, 2.0 * X])
    each = jax.vmap(jax.grad(lambda x: loss(layer)(x, W)))(xs)
    close(each, np.stack([jax.grad(lambda x: loss(layer_reference)(x, W))(x) for x in xs]), 1e-4)
    whole = jax.grad(lambda xs: jax.vmap(lambda x: loss(layer)(x, W))(xs).sum())(xs)
    close(whole, each, 1e-4)


# ---------------------------------------------------------------- remat
POLICIES = jax.checkpoint_policies


def recomputed(policy) -> int:
    """Matrix products in the gradient: 3 when the forward one is recomputed, else 2."""

    def fn(x):
        return jnp.sum(jnp.sin(jax.checkpoint(lambda a: layer(a, W), policy=policy)(x)))

    return primitives(jax.grad(fn), X).count("dot_general")


def test_remat_policies_act_on_what_is_inside():
    assert recomputed(POLICIES.nothing_saveable) == 3
    assert recomputed(POLICIES.dots_saveable) == 2


def test_the_inner_product_is_the_saved_residual(capsys):
    def residuals(fn):
        print_saved_residuals(jax.checkpoint(lambda x: jnp.sum(fn(x, W)), policy=POLICIES.dots_saveable), X)
        return sorted(line.split(" from ")[0] for line in capsys.readouterr().out.splitlines())

    assert residuals(layer) == residuals(layer_reference)
    assert "f32[2,4] output of dot_general" in residuals(layer)


def test_names_inside_an_op_are_seen_by_policies():
    def named(x):
        return jnp.exp(checkpoint_name(jnp.sin(x), "inner"))

    def sines(fn, name):
        kept = jax.checkpoint(lambda x: fn(x).sum(), policy=POLICIES.save_only_these_names(name))
        return primitives(jax.grad(kept), X).count("sin")

    for fn in (named, Op("named", named)):
        assert (sines(fn, "inner"), sines(fn, "other")) == (1, 2)


def test_gradients_through_remat_are_right():
    fn = jax.checkpoint(lambda x: loss(layer)(x, W), policy=POLICIES.dots_saveable)
    close(jax.grad(fn)(X), jax.grad(lambda x: loss(layer_reference)(x, W))(X), 1e-4)


# ---------------------------------------------------------------- control flow
def in_control_flow(fn):
    """One function in a scan, a while loop and a conditional."""

    def run(x, ws):
        carry, ys = lax.scan(lambda c, w: (fn(c, w) @ w.T, fn(c, w).sum()), x, ws)
        carry = lax.while_loop(lambda s: s[0] < 2, lambda s: (s[0] + 1, fn(s[1], ws[0]) @ ws[1].T), (0, carry))[1]
        return lax.cond(ys[0] > 0, lambda c: fn(c, ws[0]), lambda c: 2.0 * fn(c, ws[1]), carry), ys

    return run


def test_inside_scan_while_and_cond():
    ws = np.stack([W, -W])
    close(in_control_flow(layer)(X, ws), in_control_flow(layer_reference)(X, ws), 1e-4)
    assert primitives(in_control_flow(layer), X, ws).count("layer") == 5


def test_gradients_through_a_scan_and_a_cond():
    def run(fn):
        def total(x, ws):
            carry, ys = lax.scan(lambda c, w: (jnp.tanh(fn(c, w) @ w.T), fn(c, w).sum()), x, ws)
            return carry.sum() + ys.sum() + lax.cond(x.sum() > 5, lambda: 0.0, lambda: fn(x, ws[0]).sum())

        return jax.grad(total, (0, 1))(X, np.stack([W, -W]))

    close(run(layer), run(layer_reference), 1e-4)


# ---------------------------------------------------------------- meshes and export
@pytest.mark.parametrize("check_vma", [True, False])
def test_inside_a_shard_map(check_vma):
    mesh = jax.make_mesh((4, 2), ("i", "j"), axis_types=(AxisType.Auto,) * 2)
    x = np.tile(X, (4, 1))

    def run(fn):
        def body(x, w):
            return lax.pmean(fn(x, w, power=2), "j")

        sharded = jax.shard_map(body, mesh=mesh, in_specs=(P("i"), P()), out_specs=P("i"), check_vma=check_vma)
        return jax.jit(lambda x, w: (sharded(x, w), jax.grad(lambda w: jnp.sum(sharded(x, w) ** 2))(w)))(x, W)

    close(run(layer), run(layer_reference), 1e-4)


def test_a_shard_map_makes_a_trace_of_its_own():
    """The same local shapes inside and outside: types inside vary over the mesh."""
    mesh = jax.make_mesh((8,), ("i",), axis_types=(AxisType.Auto,))
    outside = layer(X, W)
    inside = jax.shard_map(lambda x: layer(x, W), mesh=mesh, in_specs=P("i"), out_specs=P("i"))(np.tile(X, (8, 1)))
    close(inside, np.tile(outside, (8, 1)))
    close(layer(X, W), outside)


def test_sharded_arrays_stay_sharded():
    mesh = jax.make_mesh((8,), ("i",), axis_types=(AxisType.Auto,))
    x = jax.device_put(np.tile(X, (4, 1)), jax.NamedSharding(mesh, P("i")))
    assert layer(x, W).sharding.spec[0] == "i"


@pytest.mark.parametrize(
    "op", [layer, Op("layer_too", layer_reference, implementations=(Implementation("xla", layer_reference),))]
)
def test_export_round_trip_with_derivatives(op):
    exported = export.export(jax.jit(lambda x, w: op(x, w, power=2)))(X, W)
    restored = export.deserialize(exported.serialize(vjp_order=1))
    expected, pull = jax.vjp(lambda x, w: layer_reference(x, w, power=2), X, W)
    close(restored.call(X, W), expected)
    g = np.ones_like(expected)
    close(jax.vjp(restored.call, X, W)[1](g), pull(g), 1e-4)


def test_export_with_symbolic_dimensions():
    spec = jax.ShapeDtypeStruct(export.symbolic_shape("b, 3"), jnp.float32)
    exported = export.export(jax.jit(lambda x: layer(x, W)))(spec)
    restored = export.deserialize(exported.serialize())
    close(restored.call(np.tile(X, (3, 1))), layer_reference(np.tile(X, (3, 1)), W))


def test_lowering_for_another_platform_chooses_its_implementation():
    def constants(platform):
        return export.export(jax.jit(marked_op()), platforms=[platform])(X).mlir_module()

    assert "3.000000e+02" in constants("tpu")
    assert "2.000000e+02" in constants("cpu")
    assert "2.000000e+02" in constants("cuda")
