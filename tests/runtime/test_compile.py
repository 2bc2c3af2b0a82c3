"""compile: ahead of time, for one device or a mesh."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import jaxsplice
from jaxsplice import JaxspliceError

rng = np.random.default_rng(0)
X, A, B = (rng.standard_normal(s).astype(np.float32) for s in ((8, 16), (16, 32), (16, 32)))


def gate(x, a, b):
    return jax.nn.silu(x @ a) * (x @ b)


@pytest.fixture
def mesh():
    return jax.make_mesh((4, 2), ("data", "model"), axis_types=(AxisType.Auto,) * 2)


def close(got, expected=None):
    np.testing.assert_allclose(got, gate(X, A, B) if expected is None else expected, rtol=1e-5, atol=1e-5)


# ---------------------------------------------------------------- one device
def test_compiled_for_one_device():
    compiled = jaxsplice.compile(gate, X, A, B)
    close(compiled(X, A, B))
    assert compiled.result.report.counts == {"swiglu": 1}
    assert "HloModule" in compiled.as_text() and compiled.memory is not None
    assert repr(compiled) == "<Compiled gate: {'swiglu': 1}>"


def test_from_abstract_arguments_and_a_finished_result():
    shapes = [jax.ShapeDtypeStruct(t.shape, t.dtype) for t in (X, A, B)]
    close(jaxsplice.compile(gate, *shapes)(X, A, B))
    result = jaxsplice.rewrite(jaxsplice.trace(gate, *shapes), "raise")
    compiled = jaxsplice.compile(result)
    assert compiled.result is result
    close(compiled(X, A, B))


def test_options_are_those_of_rewrite():
    compiled = jaxsplice.compile(gate, X, A, B, passes="none", target="cpu", verify="strict")
    assert compiled.result.report.counts == {} and compiled.result.after is compiled.result.before


def test_pytrees_keywords_and_static_arguments():
    def fn(x, w, *, flip, scale):
        out = gate(x, w["b"], w["a"]) if flip else gate(x, w["a"], w["b"])
        return {"out": out * scale}

    compiled = jaxsplice.compile(fn, X, {"a": A, "b": B}, flip=True, scale=2.0, static_argnames="flip")
    close(compiled(X, {"a": A, "b": B}, scale=3.0)["out"], 3.0 * gate(X, B, A))
    with pytest.raises(TypeError):
        compiled(X, {"a": A, "b": B}, flip=True, scale=3.0)


def test_wrong_shapes_are_refused_by_the_compiled_program():
    compiled = jaxsplice.compile(gate, X, A, B)
    with pytest.raises(TypeError, match=r"compiled|shape"):
        compiled(X[:4], A, B)


@pytest.mark.parametrize("donated", [0, (0,)])
def test_donated_arguments_are_given_away(donated):
    compiled = jaxsplice.compile(lambda cache, x: {"k": cache["k"] + x}, {"k": X}, X, donate_argnums=donated)
    cache = {"k": jnp.asarray(X)}
    close(compiled(cache, X)["k"], 2 * X)
    assert cache["k"].is_deleted()


# ---------------------------------------------------------------- a mesh
def test_shardings_by_partition_spec(mesh):
    specs = (P("data"), P(None, "model"), P(None, "model"))
    compiled = jaxsplice.compile(gate, X, A, B, mesh=mesh, in_shardings=specs, out_shardings=P("data", "model"))
    out = compiled(*[jax.device_put(t, NamedSharding(mesh, s)) for t, s in zip((X, A, B), specs)])
    assert out.sharding == NamedSharding(mesh, P("data", "model"))
    assert {s.data.shape for s in out.addressable_shards} == {(2, 16)}
    close(out)


def test_shardings_by_named_sharding_need_no_mesh(mesh):
    rows = NamedSharding(mesh, P("data"))
    compiled = jaxsplice.compile(gate, X, A, B, in_shardings=(rows, None, None), out_shardings=rows)
    out = compiled(jax.device_put(X, rows), A, B)
    assert out.sharding.spec == P("data")
    close(out)


def test_a_mesh_alone_replicates(mesh):
    compiled = jaxsplice.compile(gate, X, A, B, mesh=mesh)
    out = compiled(*[jax.device_put(t, NamedSharding(mesh, P())) for t in (X, A, B)])
    assert out.sharding.is_fully_replicated and len(out.sharding.device_set) == 8
    close(out)


def test_prefixes_of_pytrees(mesh):
    fn = lambda x, w: gate(x, w["a"], w["b"])
    compiled = jaxsplice.compile(fn, X, {"a": A, "b": B}, mesh=mesh, in_shardings=(P("data"), P()))
    weights = jax.device_put({"a": A, "b": B}, NamedSharding(mesh, P()))
    close(compiled(jax.device_put(X, NamedSharding(mesh, P("data"))), weights))


def test_collectives_inside_are_compiled(mesh):
    def fn(x):
        return jax.shard_map(lambda x: jax.lax.psum(x, "data"), mesh=mesh, in_specs=P("data"), out_specs=P())(x)

    compiled = jaxsplice.compile(fn, X, mesh=mesh, in_shardings=(P("data"),))
    close(compiled(jax.device_put(X, NamedSharding(mesh, P("data")))), X.reshape(4, 2, 16).sum(0))
    assert "all-reduce" in compiled.as_text()


# ---------------------------------------------------------------- wrong use
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"in_shardings": (P("data"), P(), P())}, r"refers to mesh axes: give mesh= as well, or a NamedSharding"),
        ({"out_shardings": P("data")}, r"refers to mesh axes: give mesh= as well"),
        (
            {"mesh": True, "in_shardings": (P("rows"), P(), P())},
            r"names axes \['rows'\]; the mesh has \('data', 'model'",
        ),
        ({"mesh": True, "in_shardings": (P(("data", "x")), P(), P())}, r"names axes \['x'\]; the mesh has"),
        ({"mesh": True, "in_shardings": ("data", P(), P())}, r"a sharding is a jax\.sharding\.Sharding or a Partition"),
        ({"target": "tpu9"}, r"there is no target 'tpu9'"),
        ({"passes": "rais"}, r"no pass, pipeline or rule 'rais'"),
        ({"verify": "never"}, r"verify='never' is none of"),
    ],
)
def test_wrong_use_is_one_clear_error(options, message, mesh):
    if options.get("mesh"):
        options = {**options, "mesh": mesh}
    with pytest.raises(JaxspliceError, match=message):
        jaxsplice.compile(gate, X, A, B, **options)


def test_keywords_cannot_be_sharded(mesh):
    with pytest.raises(JaxspliceError, match="with shardings, give all arguments by position"):
        jaxsplice.compile(gate, X, A, b=B, mesh=mesh)
