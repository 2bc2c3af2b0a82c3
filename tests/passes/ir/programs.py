"""Programs with every kind of region, effect and oddity that JAX can write into a jaxpr."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax import export, lax
from jax.ad_checkpoint import checkpoint_name
from jax.experimental import io_callback
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from jaxsplice.passes.ir import jaxprs
from jaxsplice.passes.ir.region import Program

X = np.linspace(-1.0, 1.5, 6, dtype=np.float32)
M = np.linspace(-1.0, 1.0, 12, dtype=np.float32).reshape(3, 4)
SEEN: list = []  # what callbacks of a run were given, in order
PROGRAMS: dict = {}


def program(*args, run: bool = True):
    """Register a function with arguments; `run` is False where only the jaxpr is of interest."""

    def register(fn):
        PROGRAMS[fn.__name__] = (fn, args, run)
        return fn

    return register


def traced(name: str):
    """The closed jaxpr of a registered program."""
    fn, args, _ = PROGRAMS[name]
    return jax.make_jaxpr(fn)(*args)


def run(closed, args) -> tuple[list, list]:
    """Results of a jaxpr and what its callbacks saw."""
    SEEN.clear()
    out = jax.jit(jaxprs.as_function(closed))(*args)
    jax.effects_barrier()
    return [np.asarray(_without_key_type(o)) for o in out], list(SEEN)


def _without_key_type(x):
    return jax.random.key_data(x) if jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key) else x


def all_regions(whole: Program) -> list:
    """Every region, built."""
    queue, seen = [whole.root], {id(whole.root)}
    for region in queue:
        for node in region.nodes:
            for child in node.children():
                if id(child) not in seen:
                    seen.add(id(child))
                    queue.append(child)
    return queue


def see(x) -> None:
    """A callback that remembers what it was given."""
    SEEN.append(np.asarray(x).tolist())


# ---------------------------------------------------------------- calls
@program(X)
def plain(x):
    return jnp.sin(x) * 2.0 + x


@program(X)
def one_call_twice(x):
    return jax.nn.silu(x) + jax.nn.silu(jnp.cos(x))


@program(X)
def nested_calls(x):
    inner = jax.jit(lambda a: jnp.tanh(a) * 2.0)
    outer = jax.jit(lambda a: inner(a) + inner(inner(a)))
    return outer(x) - outer(2.0 * x)


@program(X)
def call_with_a_constant(x):
    table = np.arange(6, dtype=np.float32)
    return jax.jit(lambda a: a * table)(x) + table


@program(X)
def call_that_donates(x):
    return jax.jit(lambda a: a + 1.0, donate_argnums=0)(jnp.sin(x))


@program(X)
def call_that_passes_through(x):
    a, b, c = jax.jit(lambda a, b: (b, a, jnp.sin(a)))(x, 2.0 * x)
    return a, b, c


@program(X)
def call_without_results_used(x):
    jax.jit(lambda a: jnp.sin(a))(x)
    return x


@program(X)
def large_call_twice(x):
    @jax.jit
    def long(a):
        for _ in range(70):
            a = jnp.sin(a)
        return a

    return long(x) + long(2.0 * x)


# ---------------------------------------------------------------- loops and branches
@program(M)
def scan_with_everything(m):
    def body(carry, x):
        return carry * 0.5 + x, (carry, jax.nn.silu(x) * m[0])

    carry, (a, b) = lax.scan(body, m[0], m, reverse=True, unroll=2)
    return carry, a, b


@program(M)
def scan_in_scan(m):
    def inner(c, x):
        return c + jnp.tanh(x), c

    return lax.scan(lambda c, row: lax.scan(inner, c, row), 0.0, m)


@program(M)
def one_body_of_two_lengths(m):
    def body(c, x):
        return jnp.sin(c) + x, c

    a, _ = lax.scan(body, m[0, 0], m[0])
    b, _ = lax.scan(body, a, m[:, 0])
    return b


@program(X)
def while_loop(x):
    return lax.while_loop(lambda s: s[0] < x[1] * 0 + 3, lambda s: (s[0] + 1, jax.nn.relu(s[1]) + x), (0, x))


@program(X)
def fori_loop(x):
    return lax.fori_loop(0, 3, lambda i, a: a * jnp.cos(x) + i, x)


@program(X)
def cond(x):
    return lax.cond(x[0] > 0, lambda a: jax.nn.silu(a), lambda a: jax.nn.silu(a) * 2.0, x)


@program(X, np.int32(1))
def switch_in_scan(x, i):
    branches = [jnp.sin, jnp.cos, lambda a: a]
    return lax.scan(lambda c, k: (lax.switch(k, branches, c), c), x, jnp.array([0, 2, 1]) + i * 0)


@program(M)
def associative_scan_and_sort(m):
    return lax.associative_scan(jnp.add, m, axis=1), lax.sort((m, -m), num_keys=1), jnp.argsort(m)


# ---------------------------------------------------------------- custom derivatives, remat
@jax.custom_jvp
def _doubled_slope(x):
    return jnp.sin(x)


_doubled_slope.defjvp(lambda primals, tangents: (jnp.sin(primals[0]), 2.0 * tangents[0]))


@jax.custom_vjp
def _clipped(x):
    return x * 1.0


_clipped.defvjp(lambda x: (x * 1.0, None), lambda _, g: (jnp.clip(g, -0.1, 0.1),))


@program(X)
def custom_jvp(x):
    return _doubled_slope(x) * 2.0


@program(X)
def custom_vjp(x):
    return _clipped(x) + _clipped(2.0 * x)


@program(X)
def library_derivatives(x):
    return jax.nn.relu(x) + jax.nn.softplus(x) + jax.nn.logsumexp(x) + jax.nn.relu6(x)


@program(X)
def gradients_of_custom_rules(x):
    return jax.grad(lambda a: jnp.sum(_doubled_slope(a) + _clipped(a) * jax.nn.relu(a)))(x)


def _layer(w, x):
    return checkpoint_name(jnp.sin(x @ w), "kept") @ w.T


@program(M, M)
def remat_with_policies(m, w):
    policies = [None, jax.checkpoint_policies.dots_saveable, jax.checkpoint_policies.save_only_these_names("kept")]
    return sum(jax.checkpoint(_layer, policy=p)(w.T, m) for p in policies)


@program(M, M)
def gradient_of_remat(m, w):
    fn = jax.checkpoint(_layer, policy=jax.checkpoint_policies.dots_with_no_batch_dims_saveable)
    return jax.grad(lambda a: jnp.sum(fn(a, m)))(w.T)


@program(X)
def custom_vmap(x):
    @jax.custom_batching.custom_vmap
    def fn(a):
        return jnp.sin(a)

    @fn.def_vmap
    def _(size, batched, a):
        return jnp.sin(a) + 0.0, batched[0]

    return fn(x), jax.vmap(fn)(x)


@program(np.eye(3, dtype=np.float32) * 2.0, np.ones(3, np.float32))
def linear_solve(a, b):
    return lax.custom_linear_solve(lambda x: a @ x, b, lambda _, y: y / 2.0, lambda _, y: y / 2.0)


# ---------------------------------------------------------------- meshes
@functools.cache
def mesh(axis_type=AxisType.Auto):
    """Eight devices."""
    return jax.make_mesh((4, 2), ("i", "j"), axis_types=(axis_type,) * 2)


def _sharded(x, w):
    y = lax.psum(jax.nn.silu(x @ w), "j")
    return lax.ppermute(y, "i", [(0, 1), (1, 0)]) + lax.psum_scatter(lax.all_gather(y, "i"), "i", scatter_dimension=0)


def _shard_map(x, w, check_vma: bool):
    specs = (P("i", "j"), P("j", None))
    return jax.shard_map(_sharded, mesh=mesh(), in_specs=specs, out_specs=P("i"), check_vma=check_vma)(x, w)


@program(np.ones((8, 4), np.float32), np.ones((4, 3), np.float32))
def shard_map_checked(x, w):
    return _shard_map(x, w, True)


@program(np.ones((8, 4), np.float32), np.ones((4, 3), np.float32))
def shard_map_unchecked(x, w):
    return _shard_map(x, w, False)


@program(np.ones((8, 4), np.float32))
def shard_map_over_one_axis_with_a_constant(x):
    table = np.arange(2, dtype=np.float32)[:, None]

    def body(a):
        return jax.jit(lambda b: b * table + lax.axis_index("i"))(a)

    return jax.shard_map(body, mesh=mesh(), in_specs=P("i"), out_specs=P("i"), axis_names={"i"})(x)


@program(np.ones((8, 4), np.float32))
def sharding_constraints(x):
    placed = jax.lax.with_sharding_constraint(x, NamedSharding(mesh(), P("i", None)))
    return jax.jit(jnp.sin, out_shardings=NamedSharding(mesh(), P(None, "j")))(placed)


@program(M)
def vmap_with_an_axis(m):
    return jax.vmap(lambda row: row - lax.pmean(row, "rows") + lax.axis_index("rows"), axis_name="rows")(m)


@program(X)
def constants_of_calls_in_every_region(x):
    table = np.arange(6, dtype=np.float32)
    call = jax.jit(lambda a: jnp.sin(a) * table)
    looped = lax.fori_loop(0, 2, lambda _, a: call(a), lax.while_loop(lambda a: call(a)[1] < -1.0, call, x))
    return looped, lax.cond(x[0] > 0, call, lambda a: call(a) * 2.0, x), lax.map(call, x[None])


@program(X)
def constants_of_calls_in_remat_and_shard_map(x):
    """Regions whose jaxprs may have no constants of their own."""
    table = np.arange(6, dtype=np.float32)
    call = jax.jit(lambda a: jnp.sin(a) * table)
    sharded = jax.shard_map(lambda a: call(a), mesh=mesh(), in_specs=P(), out_specs=P())
    return jax.checkpoint(lambda a: call(a))(x), sharded(x), jax.grad(lambda a: jax.checkpoint(call)(a).sum())(x)


# ---------------------------------------------------------------- effects
@program(X)
def prints(x):
    jax.debug.callback(see, x[0], ordered=True)
    y = jax.jit(lambda a: (jax.debug.callback(see, a[1], ordered=True), jnp.sin(a))[1])(x)
    jax.debug.callback(see, y[2], ordered=True)
    return y


@program(X)
def prints_in_regions(x):
    def body(c, a):
        jax.debug.callback(see, a, ordered=True)
        return c + a, c

    total, _ = lax.scan(body, 0.0, x)
    lax.cond(total > 0, lambda t: jax.debug.callback(see, t, ordered=False), lambda t: None, total)
    return total


@program(X)
def input_and_output(x):
    y = io_callback(lambda a: (see(a), a * 2)[1], jax.ShapeDtypeStruct((6,), jnp.float32), x, ordered=True)
    return io_callback(lambda a: (see(a), a + 1)[1], jax.ShapeDtypeStruct((6,), jnp.float32), y, ordered=True)


@program(X)
def pure_callback(x):
    return jax.pure_callback(np.sin, jax.ShapeDtypeStruct((6,), jnp.float32), x) + 1.0


@program(X)
def references(x):
    ref = jax.new_ref(x)

    @jax.jit
    def bump(r, by):
        r[...] += by

    bump(ref, x)
    ref[0] = 5.0
    return ref[...] * 2.0, jax.jit(lambda a: jax.new_ref(a)[...])(x)


# ---------------------------------------------------------------- results, types
@program(np.arange(12, dtype=np.float32).reshape(2, 6))
def unused_results(x):
    values, _ = lax.top_k(x, 2)
    _, index = jax.jit(lambda a: lax.top_k(a, 3))(x)
    return values, index


@program(X)
def odd_results(x):
    y = jnp.sin(x)
    return y, y, x, 1.0, jnp.int32(3), x, {"a": (y, None)}


@program(X)
def nothing(x):
    return ()


@program(2.0, X)
def weak_types(a, x):
    return a * 3.0, a + x, jnp.asarray(a) * jnp.bfloat16(2.0), jax.jit(lambda b: b + 1)(a)


@program(np.zeros((0, 3), np.float32))
def zero_size(x):
    return jnp.sum(x, 0), x @ jnp.ones((3, 2)), lax.scan(lambda c, a: (c + a, c), jnp.zeros(3), x)


@program(jax.random.key(0))
def random_keys(key):
    a, b = jax.random.split(key)
    stepped = lax.scan(lambda k, _: (jax.random.split(k)[0], jax.random.bits(k)), a, None, 2)
    return jax.random.normal(a, (3,)), b, stepped


@program(X, M)
def many_types(x, m):
    z = x.astype(jnp.complex64) * 1j
    bits = lax.bitcast_convert_type(x, jnp.int32) >> 1
    return jnp.abs(jnp.fft.fft(z)), bits, x.astype(jnp.float8_e4m3fn).astype(jnp.float32), m.astype(bool) & True


@program(M)
def gather_scatter_convolve(m):
    taken = jnp.take(m, jnp.array([2, 0]), axis=0)
    kernel = jnp.ones((1, 1, 3))
    return m.at[jnp.array([0, 1]), 1].add(5.0), taken, lax.conv(m[:, None], kernel, (1,), "SAME"), m[::2, ::-1]


@program(X)
def named_scopes(x):
    with jax.named_scope("outer"):
        y = jax.jit(jnp.sin)(x)
        with jax.named_scope("inner"):
            return y * 2.0


@program(jax.ShapeDtypeStruct(export.symbolic_shape("b, 3"), jnp.float32), run=False)
def symbolic_dimensions(x):
    return jax.nn.silu(x).reshape(-1) * 2.0 @ jnp.ones((x.size,)), lax.scan(lambda c, a: (c + a, c), x[0], x)
