"""Random JAX programs made of what the views see through, small enough to check element by element."""

import math

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.ad_checkpoint import checkpoint_name

LARGEST = 72  # elements of one array
F32, BF16, I32 = jnp.float32, jnp.bfloat16, jnp.int32
OPERATIONS: list = []


def operation(make):
    """Register a random operation, `make(rng, arrays) -> array`; where it does not fit it returns one of `arrays`."""
    OPERATIONS.append(make)
    return make


def program(seed: int, length: int, operations=None):
    """A random function of three arrays, and their types."""
    shapes = [(4, 6), (2, 3, 4), (6,)]

    def fn(*inputs):
        rng = np.random.default_rng(seed)
        return grow(rng, list(inputs), length, operations or OPERATIONS)

    return fn, [jax.ShapeDtypeStruct(s, F32) for s in shapes]


def grow(rng, arrays: list, length: int, operations) -> list:
    """Apply random operations to arrays and to each other's results."""
    while length:
        made = operations[rng.integers(len(operations))](rng, arrays)
        if made.size <= LARGEST and made.size and made.ndim <= 4 and all(made is not a for a in arrays):
            arrays.append(made)
            length -= 1
    return arrays


def pick(rng, arrays):
    """One of the later arrays, rather than one of the first."""
    return arrays[max(rng.integers(len(arrays)), rng.integers(len(arrays)))]


def some_axes(rng, x) -> tuple[int, ...]:
    """Any axes of an array, at least one if it has any."""
    count = rng.integers(1, x.ndim + 1) if x.ndim else 0
    return tuple(int(d) for d in sorted(rng.permutation(x.ndim)[:count]))


def same_shape(rng, arrays, x):
    """Another array like x: one that is there, x moved about, or a number."""
    alike = [a for a in arrays if a.shape == x.shape]
    choice = rng.integers(4)
    if choice == 0:
        return F32(rng.choice([0.5, -2.0, 3.0]))
    if choice == 1 and x.ndim:
        return lax.rev(x, (int(rng.integers(x.ndim)),))
    if choice == 2 and x.ndim:
        return jnp.sum(x, int(rng.integers(x.ndim)), keepdims=True)
    return alike[rng.integers(len(alike))]


# ---------------------------------------------------------------- layout
@operation
def transpose(rng, arrays):
    x = pick(rng, arrays)
    return lax.transpose(x, tuple(int(d) for d in rng.permutation(x.ndim)))


@operation
def reshape(rng, arrays):
    x = pick(rng, arrays)
    primes = [p for p in (2, 3, 5, 7, 11, 13) for k in range(1, 8) if x.size % p**k == 0]
    if math.prod(primes) != x.size:
        return x
    shape = [1] * int(rng.integers(1, 5))
    for p in rng.permutation(primes):
        shape[rng.integers(len(shape))] *= int(p)
    return lax.reshape(x, tuple(shape))


@operation
def broadcast(rng, arrays):
    x = pick(rng, arrays)
    shape, kept = [], []
    for size in x.shape:
        shape += [int(rng.choice([1, 2, 3]))] * int(rng.integers(2))
        kept.append(len(shape))
        shape.append(size if size != 1 else int(rng.integers(1, 4)))
    return lax.broadcast_in_dim(x, tuple(shape), kept)


@operation
def strided_slice(rng, arrays):
    x = pick(rng, arrays)
    start = [int(rng.integers(n)) for n in x.shape]
    limit = [int(rng.integers(s + 1, n + 1)) for s, n in zip(start, x.shape)]
    return lax.slice(x, start, limit, [int(rng.integers(1, 4)) for _ in x.shape])


@operation
def literal_dynamic_slice(rng, arrays):
    x = pick(rng, arrays)
    sizes = [int(rng.integers(1, n + 1)) for n in x.shape]
    return lax.dynamic_slice(x, [int(rng.integers(n + 1)) for n in x.shape], sizes)


@operation
def split(rng, arrays):
    x = pick(rng, arrays)
    axis = int(rng.integers(x.ndim)) if x.ndim else -1
    if axis < 0 or x.shape[axis] < 2:
        return x
    first = int(rng.integers(1, x.shape[axis]))
    return lax.split(x, (first, x.shape[axis] - first), axis)[rng.integers(2)]


@operation
def reverse(rng, arrays):
    x = pick(rng, arrays)
    return lax.rev(x, some_axes(rng, x))


@operation
def pad(rng, arrays):
    x = pick(rng, arrays)
    interior = int(rng.integers(2)) if rng.integers(4) == 0 else 0
    config = [(int(rng.integers(-1, 3)), int(rng.integers(-1, 3)), interior) for _ in x.shape]
    config = [c if n + c[0] + c[1] > 0 else (0, 0, 0) for c, n in zip(config, x.shape)]
    return lax.pad(x, x.dtype.type(rng.choice([0.0, 0.0, 0.0, 0.5])), config)


@operation
def concatenate(rng, arrays):
    x = pick(rng, arrays)
    if not x.ndim:
        return x
    axis = int(rng.integers(x.ndim))
    pieces = [x, lax.slice_in_dim(x, 0, int(rng.integers(1, x.shape[axis] + 1)), axis=axis)]
    pieces += [jnp.zeros_like(x)] * int(rng.integers(2)) + [jnp.exp(x)] * int(rng.integers(2))
    return lax.concatenate([pieces[i] for i in rng.permutation(len(pieces))], axis)


@operation
def squeeze_or_expand(rng, arrays):
    x = pick(rng, arrays)
    ones = [d for d, n in enumerate(x.shape) if n == 1]
    return lax.squeeze(x, ones) if ones else lax.expand_dims(x, (int(rng.integers(x.ndim + 1)),))


# ---------------------------------------------------------------- casts and marks
@operation
def round_trip(rng, arrays):
    return pick(rng, arrays).astype(BF16).astype(F32)


@operation
def rounded_number(rng, arrays):
    x = pick(rng, arrays)
    return x * jnp.full(x.shape, float(rng.choice([0.1, 2.7])), F32).astype(rng.choice([BF16, I32])).astype(F32)


@operation
def mark(rng, arrays):
    x = pick(rng, arrays)
    y = lax.optimization_barrier((x, jnp.tanh(x)))[rng.integers(2)]
    return checkpoint_name(y, "kept") if rng.integers(2) else jnp.maximum(jnp.copy(y), -jnp.inf)


@operation
def integers(rng, arrays):
    x = pick(rng, arrays)
    k = lax.clamp(-100.0, 4.0 * x, 100.0).astype(I32)
    other = [k + 3, k * k, -k, k // 2, lax.div(k, I32(3)), lax.integer_pow(k, 2), k - lax.rev(k, (0,)) if k.ndim else k]
    return other[rng.integers(len(other))].astype(F32)


# ---------------------------------------------------------------- products and sums
@operation
def multiply(rng, arrays):
    x = pick(rng, arrays)
    return x * same_shape(rng, arrays, x)


@operation
def divide(rng, arrays):
    x = pick(rng, arrays)
    y = same_shape(rng, arrays, x)
    return x / y if rng.integers(2) else y / x


@operation
def add(rng, arrays):
    x = pick(rng, arrays)
    y = same_shape(rng, arrays, x)
    return [x + y, x - y, y - x][rng.integers(3)]


@operation
def power(rng, arrays):
    x = pick(rng, arrays)
    y = [x, jnp.square(x), jnp.exp(x), -x][rng.integers(4)]
    roots = [lax.sqrt, lax.rsqrt, lax.square, lax.neg, lambda a: a**0.5, lambda a: a**1.5, lambda a: a**-0.5]
    roots += [lambda a: lax.integer_pow(a, int(rng.choice([-2, -1, 2, 3])))]
    return roots[rng.integers(len(roots))](y)


@operation
def variable_power(rng, arrays):
    x = pick(rng, arrays)
    return lax.pow(jnp.exp(x), jnp.tanh(x))


# ---------------------------------------------------------------- contractions
@operation
def reduce_sum(rng, arrays):
    x = pick(rng, arrays)
    return lax.reduce_sum_p.bind(x, axes=some_axes(rng, x), out_sharding=None)


@operation
def mean(rng, arrays):
    x = pick(rng, arrays)
    return jnp.mean(x, some_axes(rng, x), keepdims=bool(rng.integers(2)))


@operation
def dot_general(rng, arrays):
    a, b = pick(rng, arrays), pick(rng, arrays)
    contract, batch, used = ([], []), ([], []), set()
    for i in rng.permutation(a.ndim):
        fitting = [j for j in range(b.ndim) if b.shape[j] == a.shape[i] and j not in used]
        kind = rng.integers(3)
        if fitting and kind:
            j = int(rng.choice(fitting))
            used.add(j)
            for side, d in zip(contract if kind == 1 else batch, (int(i), j)):
                side.append(d)
    summed = math.prod(a.shape[i] for i in contract[0]) * math.prod(a.shape[i] for i in batch[0])
    if a.size * b.size // max(summed, 1) > 4 * LARGEST:
        return a
    return lax.dot_general(a, b, (contract, batch))


@operation
def convolution(rng, arrays):
    x = pick(rng, arrays)
    if x.ndim != 3 or max(x.shape) > 8:
        return x
    lhs, rhs, out = ("".join(rng.permutation(list(names))) for names in ("NCH", "OIH", "NCH"))
    channels, taps = x.shape[lhs.index("C")], int(rng.integers(1, 4))
    sizes = {"O": channels, "I": 1, "H": taps}
    kernel = jnp.asarray(rng.normal(size=[sizes[c] for c in rhs]).astype(np.float32))
    dilation = int(rng.integers(1, 3))
    low, high = int(rng.integers(-1, taps + 1)), int(rng.integers(-1, taps + 1))
    if x.shape[lhs.index("H")] + low + high < dilation * (taps - 1) + 1:
        return x
    return lax.conv_general_dilated(
        x, kernel, (int(rng.integers(1, 3)),), [(low, high)], rhs_dilation=(dilation,),
        lhs_dilation=(2 if rng.integers(5) == 0 else 1,), dimension_numbers=(lhs, rhs, out),
        feature_group_count=channels,
    )  # fmt: skip


# ---------------------------------------------------------------- functions
@operation
def activation(rng, arrays):
    functions = [
        jax.nn.silu, jax.nn.gelu, lambda x: jax.nn.gelu(x, approximate=False), jax.nn.softplus, jax.nn.relu,
        lambda x: 1.0 / (1.0 + jnp.exp(-x)), lambda x: x / (1.0 + jnp.exp(-x)),
        lambda x: 0.5 * (1.0 + jnp.tanh(0.5 * x)),
        lambda x: 2.0 / (2.0 * jnp.exp(x) + 2.0), jnp.tanh, jnp.abs, lambda x: lax.clamp(-0.5, x, F32(0.5)),
        lambda x: jnp.where(x > 0, x, 0.1 * x), lambda x: jnp.maximum(x, 0.25),
    ]  # fmt: skip
    return functions[rng.integers(len(functions))](pick(rng, arrays))


@operation
def along_an_axis(rng, arrays):
    x = pick(rng, arrays)
    if not x.ndim:
        return x
    axis = int(rng.integers(x.ndim))
    functions = [
        lambda a: jax.nn.softmax(a, axis), lambda a: lax.cumsum(a, axis, reverse=bool(rng.integers(2))),
        lambda a: jnp.max(a, axis), lambda a: lax.cummax(a, axis), lambda a: lax.sort(a, dimension=axis),
        lambda a: a - lax.stop_gradient(jnp.max(a, axis, keepdims=True)), lambda a: lax.cumprod(jnp.tanh(a), axis),
        lambda a: lax.top_k(a, 1)[0], lambda a: jnp.argmax(a, axis).astype(F32),
        lambda a: jnp.max(a, some_axes(rng, a)),
        lambda a: lax.dynamic_slice_in_dim(a, jnp.argmax(jnp.ravel(a)), 1, axis),
        lambda a: jnp.where(lax.concatenate([a, a], axis) > 0, 1.0, -1.0),
    ]  # fmt: skip
    return functions[rng.integers(len(functions))](x)


@operation
def position(rng, arrays):
    x = pick(rng, arrays)
    return x + lax.broadcasted_iota(F32, x.shape, int(rng.integers(x.ndim))) if x.ndim else x


# ---------------------------------------------------------------- calls and loops
@operation
def call(rng, arrays):
    inner = [o for o in OPERATIONS if o is not loop]
    seed = int(rng.integers(1 << 30))

    def body(x, y):
        return grow(np.random.default_rng(seed), [x, y], 2, inner)[-1]

    return jax.jit(body)(pick(rng, arrays), pick(rng, arrays))


@operation
def loop(rng, arrays):
    over = [a for a in arrays if a.ndim > 1 and a.shape[0] <= 4]
    xs, const = over[rng.integers(len(over))], pick(rng, arrays)
    seed, inner = int(rng.integers(1 << 30)), [o for o in OPERATIONS if o is not loop]

    def body(carry, x):
        made = grow(np.random.default_rng(seed), [const, x, carry], 3, inner)
        return jnp.tanh(carry + x), (made[-1], made[-2])

    carry, ys = lax.scan(body, jnp.zeros(xs.shape[1:], F32), xs, reverse=bool(rng.integers(2)))
    return [carry, *ys][rng.integers(3)]
