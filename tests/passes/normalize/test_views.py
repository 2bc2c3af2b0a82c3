"""What each view sees through, and where it must stop: one small program per equation."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.ad_checkpoint import checkpoint_name

from jaxsplice.passes.ir.region import Program
from jaxsplice.passes.normalize import ALL, SPELLINGS, VIEWS, WITHOUT_ROUNDING, Cursor, chain
from jaxsplice.passes.normalize.cursor import PEEL
from jaxsplice.passes.normalize.flatten import number_power, open_head, whole_product, whole_sum
from jaxsplice.passes.normalize.functions import params_key, same_number
from jaxsplice.passes.normalize.index import Label, constant, of_label, shift
from jaxsplice.passes.normalize.terms import EXPAND, Add, Along, Const, Fn, Iota, Leaf, Prod, Result, Sum, expand, key


def region_of(fn, *shapes, dtype=jnp.float32):
    """The region of a function of arrays."""
    return Program(jax.make_jaxpr(fn)(*[jax.ShapeDtypeStruct(s, dtype) for s in shapes])).root


def result(fn, *shapes, dtype=jnp.float32) -> Cursor:
    """A cursor over the only result of a function."""
    (out,) = region_of(fn, *shapes, dtype=dtype).outputs
    return Cursor.whole(out)


def ends(cursor, views=ALL):
    """What a cursor can be peeled to: the name of a primitive or the role of an input, and the index."""
    last = chain(cursor, views)[-1]
    return last.node.primitive if last.node is not None else last.atom.role[0], last.index


def names(term, views=ALL):
    """Kinds and exponents of the factors of a term, sorted, and its coefficient."""
    coefficient, factors = whole_product(term, views)
    heads = [open_head(t, views) for t, _ in factors]
    return coefficient, sorted((getattr(h, "name", type(h).__name__), e) for h, (_, e) in zip(heads, factors))


# ---------------------------------------------------------------- the set of views
def test_every_rule_belongs_to_a_view_and_every_view_has_rules():
    used = {view for view, _ in [*PEEL.values(), *EXPAND.values()]}
    assert used | {SPELLINGS} == set(VIEWS)
    assert frozenset(VIEWS) - {"casts", SPELLINGS} == WITHOUT_ROUNDING


@pytest.mark.parametrize(
    ("view", "fn"),
    [
        ("layout", lambda x: x.T),
        ("casts", lambda x: x.astype(jnp.bfloat16)),
        ("marks", lambda x: checkpoint_name(x, "kept")),
    ],
)
def test_a_view_that_is_off_peels_nothing(view, fn):
    cursor = result(fn, (2, 3))
    assert ends(cursor, frozenset({view}))[0] == "input"
    assert len(chain(cursor, ALL - {view})) == 1


@pytest.mark.parametrize(
    ("view", "fn"),
    [("products", lambda x: -x), ("contractions", lambda x: x + 1.0), ("functions", jnp.exp)],
)
def test_a_view_that_is_off_opens_nothing(view, fn):
    assert type(expand(result(fn, (2,)), ALL)) is not Result
    assert type(expand(result(fn, (2,)), ALL - {view})) is Result


# ---------------------------------------------------------------- layout
def test_a_dynamic_slice_is_clamped_to_the_array():
    name, index = ends(result(lambda x: lax.dynamic_slice(x, (5,), (2,)), (6,)))
    assert (name, index[0][0]) == ("input", 4)
    assert ends(result(lambda x, i: lax.dynamic_slice(x, (i[0].astype(int),), (2,)), (6,), (1,)))[0] == "dynamic_slice"


def test_a_slice_up_to_minus_one_is_not_the_whole():
    _, index = ends(result(lambda x: x[:-1], (6,)))
    assert [label.size for label, _ in index[0][1]] == [5]


def test_a_strided_slice_reads_every_other():
    _, ((offset, ((label, stride),)),) = ends(result(lambda x: x[1::2], (6,)))
    assert (offset, label.size, stride) == (1, 3, 2)


@pytest.mark.parametrize(
    ("config", "value", "seen"),
    [((1, 1, 0), 0.0, True), ((1, 1, 0), 0.5, False), ((0, 0, 1), 0.0, False), ((-1, 0, 0), 0.0, True)],
)
def test_only_a_pad_with_zeros_is_seen_through(config, value, seen):
    name, _ = ends(result(lambda x: lax.pad(x, np.float32(value), [config]), (4,)))
    assert (name == "input") == seen


def test_what_is_cropped_is_not_read_from_beyond():
    """A pad that first crops: its outside is zero, the operand's elements there are not."""
    for crop, fill in (((-1, 0, 0), (1, 0, 0)), ((0, -1, 0), (0, 1, 0))):
        cropped = result(lambda x, c=crop, f=fill: lax.pad(lax.pad(x, 0.0, [c]), 0.0, [f]), (4,))
        assert [c.node.primitive for c in chain(cropped, ALL)] == ["pad", "pad"]
    sliced = result(lambda x: lax.pad(x[1:3], 0.0, [(1, 1, 0)]), (4,))
    assert ends(sliced)[0] == "slice"


def test_functions_of_a_padded_read_are_not_opened():
    """exp(0) is not 0."""
    padded = result(lambda x: lax.pad(jnp.exp(x), 0.0, [(1, 0, 0)]), (4,))
    head = expand(padded, ALL)
    assert type(head) is Result and head.node.primitive == "exp"


def test_a_broadcast_of_a_padded_read_is_not_seen_through():
    cursor = result(lambda x: lax.pad(jnp.broadcast_to(x, (3, 4)), 0.0, [(1, 0, 0), (0, 0, 0)]), (4,))
    assert ends(cursor)[0] == "broadcast_in_dim"


def test_a_concatenation_is_one_piece_or_a_sum_of_padded_pieces():
    whole = result(lambda x, y: jnp.concatenate([x, y]), (2,), (3,))
    head = expand(whole, ALL)
    assert type(head) is Add
    assert [(c, t.index[0][0]) for c, t in head.addends] == [(1.0, 0), (1.0, -2)]
    piece = result(lambda x, y: jnp.concatenate([x, y])[2:], (2,), (3,))
    assert chain(piece, ALL)[-1].atom.role == ("input", 1)


def test_zeros_in_a_concatenation_add_nothing():
    end = chain(result(lambda x: jnp.concatenate([jnp.zeros(2), x]), (3,)), ALL)[-1]
    assert end.atom.role == ("input", 0) and end.index[0][0] == -2 and end.padded
    three = expand(result(lambda x, y: jnp.concatenate([x, jnp.zeros((2, 1)).T[0], y]), (2,), (3,)), ALL)
    assert len(three.addends) == 2


def test_truth_values_are_not_added():
    cursor = result(lambda x: jnp.concatenate([x, x]), (3,), dtype=jnp.bool_)
    assert type(expand(cursor, ALL)) is Result


# ---------------------------------------------------------------- marks
def test_a_barrier_keeps_its_operands_apart():
    cursor = result(lambda x, y: lax.optimization_barrier((x, y))[1], (2,), (2,))
    assert chain(cursor, ALL)[-1].atom.role == ("input", 1)


def test_a_name_is_kept_where_a_policy_may_read_it():
    def named(x):
        return checkpoint_name(jnp.sin(x), "kept")

    policy = jax.checkpoint_policies.save_only_these_names("kept")
    for wrapped, expected in ((jax.checkpoint(named, policy=policy), "name"), (jax.checkpoint(named), "sin")):
        (node,) = region_of(wrapped, (2,)).nodes
        (inner,) = node.children()
        assert ends(Cursor.whole(inner.outputs[0]))[0] == expected


def test_stop_gradient_is_seen_through_on_a_maximum_only():
    def shifted(x):
        return lax.stop_gradient(jnp.max(x, axis=1, keepdims=True))

    assert ends(result(shifted, (2, 3)))[0] == "reduce_max"
    stopped = region_of(lambda x: lax.stop_gradient(jnp.sin(x)), (2,))
    assert ends(Cursor.whole(stopped.outputs[0]))[0] == stopped.nodes[-1].primitive


def test_the_maximum_with_minus_infinity_is_nothing():
    assert ends(result(lambda x: jnp.maximum(-jnp.inf, x), (2,)))[0] == "input"
    assert ends(result(lambda x: jnp.maximum(-1.0, x), (2,)))[0] == "max"


def test_varying_casts_of_a_shard_map_are_marks():
    mesh = jax.make_mesh((2,), ("i",), axis_types=(jax.sharding.AxisType.Auto,))
    spec = jax.sharding.PartitionSpec()

    def body(x):
        return lax.psum(lax.pcast(jnp.sin(x), "i", to="varying"), "i")

    (node,) = region_of(jax.shard_map(body, mesh=mesh, in_specs=spec, out_specs=spec), (2,)).nodes
    (inner,) = node.children()
    (sum_node,) = [n for n in inner.nodes if n.primitive.startswith("psum")]
    assert ends(Cursor.whole(sum_node.inputs[0]))[0] == "sin"


# ---------------------------------------------------------------- casts
def test_casts_between_floats_only():
    assert ends(result(lambda x: x.astype(jnp.bfloat16).astype(jnp.float32), (2,)))[0] == "input"
    assert ends(result(lambda x: x.astype(jnp.int32), (2,)))[0] == "convert_element_type"
    assert ends(result(lambda x: x.astype(jnp.float32), (2,), dtype=jnp.int32))[0] == "convert_element_type"


@pytest.mark.parametrize(
    ("number", "dtype", "expected"),
    [
        (2.7, jnp.int32, 2.0),
        (-2.7, jnp.int32, -2.0),
        (0.1, jnp.bfloat16, 0.10009765625),
        (0.5, jnp.bool_, 1.0),
        (3.0, jnp.int8, 3.0),
    ],
)
def test_a_cast_number_is_rounded_as_the_cast_rounds(number, dtype, expected):
    cursor = result(lambda x: jnp.full((2,), number, jnp.float32).astype(dtype), (2,))
    assert expand(cursor, WITHOUT_ROUNDING) == Const(expected)


@pytest.mark.parametrize("number", [np.inf, np.nan, 1e30])
def test_a_cast_out_of_an_integers_range_is_left_alone(number):
    cursor = result(lambda x: jnp.full((2,), number, jnp.float32).astype(jnp.int32), (2,))
    assert type(expand(cursor, ALL)) is Fn


# ---------------------------------------------------------------- products
def test_one_product_however_it_is_spelled():
    spellings = [
        lambda x, y: x * x / y * 3.0,
        lambda x, y: 3.0 * (jnp.square(x) / y),
        lambda x, y: -(x**2) * (-3.0 * lax.integer_pow(y, -1)),
        lambda x, y: (x / jnp.sqrt(y)) * (x * lax.rsqrt(y)) / (1.0 / 3.0),
    ]
    for fn in spellings:
        coefficient, factors = names(result(fn, (2,), (2,)))
        assert same_number(coefficient, 3.0)
        assert factors == [("Leaf", -1.0), ("Leaf", 2.0)]


@pytest.mark.parametrize(
    "fn",
    [
        lambda x: jnp.sqrt(jnp.square(x)),
        lambda x: jnp.sqrt(x * x),
        lambda x: lax.rsqrt(x**2),
        lambda x: (x**4) ** 0.25,
        lambda x: jnp.sqrt(x * jnp.sin(x)),
        lambda x: jnp.sqrt(-x),
        lambda x: (jnp.square(x) * jnp.exp(x)) ** 0.5,
    ],
)
def test_a_root_is_not_taken_of_factors_that_may_be_negative(fn):
    """sqrt(x**2) is |x|, and sqrt(-x) is real for negative x."""
    coefficient, ((term, exponent),) = whole_product(result(fn, (2,)), ALL)
    assert coefficient == 1.0
    assert exponent in (0.5, -0.5, 0.25)
    assert type(open_head(term, ALL)) is Prod


@pytest.mark.parametrize(
    ("fn", "expected"),
    [
        (lambda x: jnp.sqrt(4.0 * x), (2.0, [("Leaf", 0.5)])),
        (lambda x: jnp.square(jnp.sqrt(x)), (1.0, [("Leaf", 1.0)])),
        (lambda x: jnp.sqrt(jnp.sqrt(x)), (1.0, [("Leaf", 0.25)])),
        (lambda x: jnp.sqrt(x**4), (1.0, [("Leaf", 2.0)])),
        (lambda x: 1.0 / (2.0 / x), (0.5, [("Leaf", 1.0)])),
        (lambda x: x / x, (1.0, [])),
    ],
)
def test_powers_of_powers_multiply_where_that_is_true(fn, expected):
    assert names(result(fn, (2,))) == expected


def test_integers_are_not_divided_as_numbers_are():
    cursor = result(lax.div, (2,), (2,), dtype=jnp.int32)
    assert type(expand(cursor, ALL)) is Result


def test_powers_with_a_variable_exponent_are_no_product():
    assert type(open_head(result(lax.pow, (2,), (2,)), ALL)) is Result


@pytest.mark.parametrize(
    ("base", "exponent", "expected"),
    [(4.0, 0.5, 2.0), (-2.0, 3.0, -8.0), (-4.0, 0.5, np.nan), (0.0, -1.0, np.nan), (1e300, 2.0, np.nan)],
)
def test_powers_of_numbers_are_real_and_finite_or_no_number(base, exponent, expected):
    np.testing.assert_equal(number_power(base, exponent), expected)


# ---------------------------------------------------------------- sums
def test_one_sum_however_it_is_grouped():
    constant_, addends = whole_sum(result(lambda x, y: 2.0 - (y - (x + 1.0)) - x * 3.0, (2,), (2,)), ALL)
    assert constant_ == 3.0
    assert [c for c, _ in addends] == [-1.0, 1.0, -3.0]


def test_constant_factors_and_nested_sums_are_pulled_out():
    head = open_head(result(lambda x: jnp.sum(jnp.sum(2.0 * x, 0) / 4.0), (2, 3)), ALL)
    assert type(head) is Prod and head.coefficient == 0.5
    ((inner, _),) = head.factors
    assert type(inner) is Sum and sorted(label.size for label in inner.labels) == [2, 3]


def test_a_matrix_product_is_the_same_sum_in_every_layout():
    layouts = [
        lambda x, w: x @ w,
        lambda x, w: jnp.einsum("bd,df->fb", x, w).T,
        lambda x, w: lax.dot_general(w.T, x, (((1,), (1,)), ((), ()))).T,
        lambda x, w: jnp.sum(x[:, :, None] * w[None], 1),
    ]
    for fn in layouts:
        head = open_head(result(fn, (2, 3), (3, 4)), ALL)
        assert type(head) is Sum and [label.size for label in head.labels] == [3]
        assert names(head.body) == (1.0, [("Leaf", 1.0), ("Leaf", 1.0)])


def test_nothing_to_contract_is_a_product():
    assert type(expand(result(lambda x, y: jnp.einsum("i,j->ij", x, y), (2,), (3,)), ALL)) is Prod
    assert type(expand(result(lambda x: jnp.sum(x, 1), (2, 1)), ALL)) is Prod


def convolved(taps: int, groups_of: int = 1):
    """A causal depthwise convolution along the middle axis."""

    def fn(x, w):
        return lax.conv_general_dilated(
            x, w, (1,), [(taps - 1, 0)], dimension_numbers=("NHC", "HIO", "NHC"), feature_group_count=4 // groups_of
        )

    return result(fn, (2, 5, 4), (taps, groups_of, 4))


def test_a_short_depthwise_convolution_is_a_sum_over_taps():
    head = expand(convolved(3), ALL)
    assert type(head) is Add and len(head.addends) == 3
    offsets = [t.factors[0][0].index[1][0] for _, t in head.addends]
    assert offsets == [-2, -1, 0]


@pytest.mark.parametrize("cursor", [convolved(17), convolved(3, groups_of=2)], ids=["long", "not depthwise"])
def test_other_convolutions_are_compared_as_a_whole(cursor):
    assert type(expand(cursor, ALL)) is Result


# ---------------------------------------------------------------- functions
def test_a_function_along_one_axis_keeps_the_others():
    head = expand(result(lambda x: lax.cumsum(x, 1, reverse=True), (2, 3)), ALL)
    assert type(head) is Along and head.inner.size == 3 and head.outer is not None
    assert dict(head.params)["reverse"] is True
    assert expand(result(lambda x: jnp.max(x, 0), (2, 3)), ALL).outer is None
    assert type(expand(result(jnp.max, (2, 3)), ALL)) is Result  # over two axes at once


def test_top_k_gives_values_and_places():
    region = region_of(lambda x: lax.top_k(x, 2), (3, 5))
    heads = [expand(Cursor.whole(o), ALL) for o in region.outputs]
    assert [(h.name, h.result, h.inner.size) for h in heads] == [("top_k", 0, 5), ("top_k", 1, 5)]


def test_positions_count_along_their_axis():
    head = expand(result(lambda x: lax.broadcasted_iota(jnp.int32, (2, 3), 1), (2,)), ALL)
    assert type(head) is Iota and [label.size for label, _ in head.index[1]] == [3]


def test_parameters_that_cannot_be_hashed_are_compared_as_text():
    assert params_key({"b": [1, 2], "a": 3, "sharding": object(), "c": None}) == (("a", 3), ("b", "[1, 2]"))


@pytest.mark.parametrize(
    ("fn", "coefficient"),
    [
        (jax.nn.silu, 1.0),
        (lambda x: x / (1.0 + jnp.exp(-x)), 1.0),
        (lambda x: x * (0.5 * jnp.tanh(0.5 * x) + 0.5), 1.0),
        (lambda x: 0.5 * x * (1.0 + jnp.tanh(x / 2.0)), 1.0),
        (lambda x: x / (3.0 * jnp.exp(-x) + 3.0), 1.0 / 3.0),
    ],
)
def test_spellings_of_silu(fn, coefficient):
    found, factors = names(result(fn, (2,)))
    assert same_number(found, coefficient)
    assert factors == [("Leaf", 1.0), ("logistic", 1.0)]


@pytest.mark.parametrize(
    "fn",
    [
        lambda x: 1.0 / (2.0 + jnp.exp(-x)),
        lambda x: 1.0 / (1.0 - jnp.exp(-x)),
        lambda x: 1.0 + jnp.exp(-x),
        lambda x: 1.0 - jnp.tanh(x) * 0.5,
        lambda x: 1.0 / (1.0 + jnp.exp(-x) + x),
    ],
)
def test_what_only_looks_like_a_logistic_function(fn):
    assert "logistic" not in dict(names(result(fn, (2,)))[1])


def test_numbers_are_equal_up_to_the_rounding_of_a_literal():
    assert same_number(np.float32(0.1).item(), 0.1)
    assert not same_number(0.1, 0.1001)
    assert same_number(np.inf, np.inf) and not same_number(np.inf, 1.0)
    assert not same_number(np.nan, np.nan)


# ---------------------------------------------------------------- leaves and keys
def test_constants_are_numbers_when_they_are_scalars():
    def head(value):
        return expand(Cursor.whole(region_of(lambda x: x * value, (2,)).nodes[0].inputs[1]), ALL)

    assert head(2.0) == Const(2.0)
    assert type(head(np.array([1.0, 2.0], np.float32))) is Leaf


def test_a_term_is_opened_once_per_set_of_views():
    cursor = result(jnp.exp, (2,))
    assert expand(cursor, ALL) is expand(cursor, ALL)
    assert type(expand(cursor, frozenset())) is Result
    assert type(expand(cursor, ALL)) is Fn


def test_keys_tell_elements_apart():
    (x,) = region_of(lambda x: x, (4,)).inputs
    label = Label(4)
    one, same = Cursor(x, (of_label(label),)), Cursor(x, (of_label(label),))
    other = Cursor(x, (shift(of_label(label), 1),))
    assert key(one) == key(same) != key(other)
    assert Cursor(x, (constant(4),)).padded and not one.padded and other.padded
    assert repr(one).startswith("<Cursor")
