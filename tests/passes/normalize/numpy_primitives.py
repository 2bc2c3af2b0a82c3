"""JAX primitives in NumPy, as plainly as possible: what the views' equations are tested against."""

import itertools
import math

import jax.numpy as jnp
import numpy as np

ERF = np.vectorize(math.erf, otypes=[float])
_AXIS_PARAMETER = {"sort": "dimension", "top_k": "axis"}


def run(name: str, params: dict, inputs: list, rounds: bool) -> list:
    """Results of one primitive.

    Args:
        name: of the primitive.
        params: of the equation.
        inputs: NumPy arrays.
        rounds: whether casts between floats round.
    """
    with np.errstate(all="ignore"):
        if name == "convert_element_type":
            return [convert(inputs[0], params["new_dtype"], rounds)]
        if name in _PLAIN:
            return [np.asarray(_PLAIN[name](*inputs))]
        out = _WITH_PARAMETERS[name](params, *inputs)
        return list(out) if isinstance(out, list | tuple) else [np.asarray(out)]


def axis_zero(name: str) -> dict:
    """The parameter that says where a function along an axis runs, for operands that have only that axis."""
    if name.startswith("cum"):
        return {"axis": 0}
    return {_AXIS_PARAMETER[name]: 0} if name in _AXIS_PARAMETER else {"axes": (0,)}


def convert(x, dtype, rounds: bool):
    """A cast; between floats it does nothing but round."""
    if not jnp.issubdtype(dtype, jnp.floating):
        return np.trunc(np.clip(np.nan_to_num(x), -1e9, 1e9)).astype(dtype)
    return x.astype(dtype).astype(np.float64) if rounds else x.astype(np.float64)


def _transpose(p, x):
    return np.transpose(x, p["permutation"])


def _broadcast(p, x, *_):
    shape = [1] * len(p["shape"])
    for size, d in zip(x.shape, p["broadcast_dimensions"]):
        shape[d] = size
    return np.broadcast_to(x.reshape(shape), p["shape"])


def _slice(p, x):
    strides = p["strides"] or (1,) * x.ndim
    return x[tuple(slice(a, b, s) for a, b, s in zip(p["start_indices"], p["limit_indices"], strides))]


def _dynamic_slice(p, x, *starts):
    clamped = [min(max(int(s), 0), n - m) for s, n, m in zip(starts, x.shape, p["slice_sizes"])]
    return x[tuple(slice(s, s + m) for s, m in zip(clamped, p["slice_sizes"]))]


def _split(p, x):
    return np.split(x, np.cumsum(p["sizes"])[:-1], p["axis"])


def _pad(p, x, value):
    for d, (low, high, interior) in enumerate(p["padding_config"]):
        x = np.moveaxis(x, d, 0)
        rows = [r for i, row in enumerate(x) for r in ([] if i == 0 else [np.full_like(row, value)] * interior) + [row]]
        blank = np.full(x.shape[1:], value)
        rows = [blank] * max(low, 0) + rows[max(-low, 0) : len(rows) - max(-high, 0)] + [blank] * max(high, 0)
        x = np.moveaxis(np.stack(rows), 0, d)
    return x


def _dot_general(p, a, b):
    (ca, cb), (ba, bb) = p["dimension_numbers"]
    names = iter(range(26))
    a_names, b_names = [next(names) for _ in a.shape], [next(names) for _ in b.shape]
    for i, j in [*zip(ca, cb), *zip(ba, bb)]:
        b_names[j] = a_names[i]
    out = [a_names[i] for i in ba]
    out += [n for i, n in enumerate(a_names) if i not in {*ca, *ba}]
    out += [n for j, n in enumerate(b_names) if j not in {*cb, *bb}]
    return np.einsum(a, a_names, b, b_names, out)


def _convolution(p, x, w):
    """A convolution over one axis, as its definition reads."""
    spec, groups = p["dimension_numbers"], p["feature_group_count"]
    x, w = np.transpose(x, spec.lhs_spec), np.transpose(w, spec.rhs_spec)  # [B, C, T], [O, C / groups, K]
    batch, outs, taps = x.shape[0], w.shape[0], w.shape[2]
    (before, after), stride = p["padding"][0], p["window_strides"][0]
    dilation, spread = p["rhs_dilation"][0], p["lhs_dilation"][0]
    length = (x.shape[2] - 1) * spread + 1
    steps = (length + before + after - (dilation * (taps - 1) + 1)) // stride + 1
    y = np.zeros((batch, outs, steps))
    for o, t, k in itertools.product(range(outs), range(steps), range(taps)):
        at = t * stride + k * dilation - before
        if 0 <= at < length and at % spread == 0:
            first = o // (outs // groups) * w.shape[1]
            y[:, o, t] += x[:, first : first + w.shape[1], at // spread] @ w[o, :, k]
    return np.transpose(y, np.argsort(spec.out_spec))


def _cumulative(function):
    def along(p, x):
        axis = p["axis"]
        return np.flip(function(np.flip(x, axis), axis=axis), axis) if p.get("reverse") else function(x, axis=axis)

    return along


def _top_k(p, x):
    order = np.argsort(-x, axis=-1, kind="stable")[..., : p["k"]]
    return [np.take_along_axis(x, order, -1), order]


def _select(_, which, *cases):
    return np.where(which, cases[1], cases[0])


def _iota(p):
    shape = [1] * len(p["shape"])
    shape[p["dimension"]] = -1
    return np.broadcast_to(np.arange(p["shape"][p["dimension"]]).reshape(shape), p["shape"])


def _divide(a, b):
    return np.trunc(a / b).astype(a.dtype) if a.dtype.kind in "iu" else a / b


def _same(x, *_):
    return x


_PLAIN = {
    "add": np.add, "add_any": np.add, "sub": np.subtract, "mul": np.multiply, "div": _divide, "neg": np.negative,
    "max": np.maximum, "min": np.minimum, "pow": np.power, "sqrt": np.sqrt, "rsqrt": lambda x: 1 / np.sqrt(x),
    "square": np.square, "exp": np.exp, "exp2": np.exp2, "log": np.log, "log1p": np.log1p, "expm1": np.expm1,
    "tanh": np.tanh, "logistic": lambda x: 1 / (1 + np.exp(-x)), "erf": ERF, "erfc": lambda x: 1 - ERF(x),
    "sin": np.sin, "cos": np.cos, "abs": np.abs, "sign": np.sign, "floor": np.floor, "ceil": np.ceil,
    "is_finite": np.isfinite, "not": np.logical_not, "and": np.logical_and, "or": np.logical_or, "eq": np.equal,
    "ne": np.not_equal, "lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal,
    "clamp": lambda low, x, high: np.minimum(np.maximum(x, low), high), "copy": _same, "copy_p": _same, "name": _same,
    "stop_gradient": _same, "sharding_constraint": _same, "rem": np.fmod, "atan2": np.arctan2, "cbrt": np.cbrt,
}  # fmt: skip

_WITH_PARAMETERS = {
    "transpose": _transpose, "broadcast_in_dim": _broadcast, "slice": _slice, "dynamic_slice": _dynamic_slice,
    "split": _split, "pad": _pad, "dot_general": _dot_general, "conv_general_dilated": _convolution, "iota": _iota,
    "reshape": lambda p, x: x.reshape(p["new_sizes"]),
    "squeeze": lambda p, x: np.squeeze(x, tuple(d % x.ndim for d in p["dimensions"])),
    "rev": lambda p, x: np.flip(x, p["dimensions"]),
    "concatenate": lambda p, *pieces: np.concatenate(pieces, p["dimension"]),
    "reduce_sum": lambda p, x: x.sum(p["axes"]), "reduce_max": lambda p, x: x.max(p["axes"]),
    "reduce_min": lambda p, x: x.min(p["axes"]), "reduce_prod": lambda p, x: x.prod(p["axes"]),
    "reduce_and": lambda p, x: x.all(p["axes"]), "reduce_or": lambda p, x: x.any(p["axes"]),
    "argmax": lambda p, x: x.argmax(p["axes"][0]), "argmin": lambda p, x: x.argmin(p["axes"][0]),
    "cumsum": _cumulative(np.cumsum), "cumprod": _cumulative(np.cumprod),
    "cummax": _cumulative(np.maximum.accumulate), "cummin": _cumulative(np.minimum.accumulate),
    "cumlogsumexp": _cumulative(np.logaddexp.accumulate), "sort": lambda p, *xs: [np.sort(xs[0], p["dimension"])],
    "top_k": _top_k, "select_n": _select,
    "integer_pow": lambda p, x: np.power(x, p["y"]) if p["y"] >= 0 else 1.0 / np.power(x, -p["y"]),
    "optimization_barrier": lambda p, *xs: list(xs),
}  # fmt: skip
