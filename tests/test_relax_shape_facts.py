"""What is known of sizes: ranges, relations, and what follows of them."""

import math

import pytest
import tvm
from hypothesis import given, settings
from hypothesis import strategies as st
from relax_testing import module
from tvm import tirx
from tvm.script import relax as R
from tvm.script import tirx as T

from relax_passes import CheckReshapes
from relax_passes.shape_facts import Bounds, ShapeFacts, facts
from relax_passes.shape_range import LARGEST, Range

n, m, s = (tirx.Var(name, "int64") for name in "nms")


@pytest.mark.parametrize(
    "arguments, reason",
    [
        ((-1, 4), "smallest must be a whole number from 0 on, not -1"),
        ((1, 2.0), "largest must be a whole number from 0 on, not 2.0"),
        ((True, 4), "smallest must be a whole number from 0 on, not True"),
        ((0, LARGEST + 1), f"largest must be a whole number from 0 on, not {LARGEST + 1}"),
        ((0, 8, 0), "multiple_of must be at least 1, not 0"),
        ((5, 4), "smallest must be at most largest, not 5 with largest 4"),
        ((9, 15, 8), "no multiple of multiple_of, 8, is from smallest, 9, to largest, 15"),
        ((1, 16, 8, (8, 12)), "the likely size 12 is not between 1 and 16 and a multiple of 8"),
    ],
)
def test_ranges_that_are_none(arguments, reason):
    with pytest.raises(ValueError) as caught:
        Range(*arguments)
    assert str(caught.value) == f"Range: {reason}"


def test_what_two_ranges_promise_together():
    both = Range(1, 512, 8, (16, 128)) & Range(10, None, 12, (48,))
    assert both == Range(10, 512, 24, (48,))
    assert str(both) == "between 10 and 512 and a multiple of 24"
    assert [size in both for size in (24, 504, 0, 512, 528)] == [True, True, False, False, False]
    assert str(Range(3)) == "at least 3" and str(Range()) == "any size"
    with pytest.raises(ValueError, match="no size is at least 9, and between 0 and 4"):
        Range(9) & Range(0, 4)


@given(*[st.tuples(st.integers(0, 9), st.none() | st.integers(12, 20), st.integers(1, 4))] * 2)
def test_one_range_includes_another(a, b):
    a, b = Range(*a), Range(*b)
    if a.includes(b):
        assert all(size in a for size in range(60) if size in b)


# --- random expressions

TERMS = st.recursive(
    st.sampled_from(["n", "m", "s", 0, 1, 2, 3, 8, 12]),
    lambda each: st.tuples(st.sampled_from(["+", "-", "*", "//", "%", "min", "max"]), each, each),
    max_leaves=6,
)
RANGES = st.builds(
    lambda smallest, more, step: Range(smallest, smallest + more + step, step),
    st.integers(0, 5),
    st.integers(0, 40),
    st.sampled_from([1, 2, 3, 8]),
)


def build(term, leaves, smaller, larger):
    """The term on symbols or on numbers."""
    if not isinstance(term, tuple):
        return leaves[term]
    operator, a, b = term[0], *(build(each, leaves, smaller, larger) for each in term[1:])
    return {
        "+": lambda: a + b,
        "-": lambda: a - b,
        "*": lambda: a * b,
        "//": lambda: a // (b * b + 1),
        "%": lambda: a % (b * b + 1),
        "min": lambda: smaller(a, b),
        "max": lambda: larger(a, b),
    }[operator]()


def symbolic(term):
    constants = {i: tirx.const(i, "int64") for i in (0, 1, 2, 3, 8, 12)}
    built = build(term, {"n": n, "m": m, "s": s, **constants}, tirx.min, tirx.max)
    return built


def numeric(term, sizes):
    return build(
        term, {**dict(zip("nms", sizes, strict=True)), **{i: i for i in range(13)}}, min, max
    )


@settings(max_examples=150, deadline=None)
@given(TERMS, TERMS, st.tuples(RANGES, RANGES, RANGES), st.data())
def test_what_is_told_is_true(left, right, ranges, data):
    known = ShapeFacts(dict(zip((n, m, s), ranges, strict=True)))
    a, b = symbolic(left), symbolic(right)
    bounds, step = known.bounds(a), known.multiple_of(a)
    equal, below = known.equal(a, b), known.holds(a < b)
    simple = known.simplify(a)
    for _ in range(4):
        sizes = [
            data.draw(st.sampled_from([size for size in range(60) if size in each]))
            for each in ranges
        ]
        x, y = numeric(left, sizes), numeric(right, sizes)
        assert bounds.smallest is None or bounds.smallest <= x
        assert bounds.largest is None or x <= bounds.largest
        assert x == 0 if step == 0 else x % step == 0
        assert not equal or x == y
        assert below is None or below == (x < y)
        assert evaluated(simple, sizes) == x


def evaluated(expr, sizes):
    values = {name.name: size for name, size in zip((n, m, s), sizes, strict=True)}
    replaced = tvm.sym.Analyzer()
    for name in (n, m, s):
        replaced.bind(name, tirx.const(values[name.name], "int64"))
    return int(replaced.simplify(expr))


@settings(max_examples=150, deadline=None)
@given(*[TERMS] * 4, st.lists(st.integers(0, 6), min_size=3, max_size=3))
def test_what_follows_from_a_relation_is_true(left, right, a, b, sizes):
    """Whatever the relation says, an equation that it proves holds where it does."""
    from relax_passes.element_count import equal_given

    follows = equal_given(symbolic(a), symbolic(b), [(symbolic(left), symbolic(right))])
    if follows and numeric(left, sizes) == numeric(right, sizes):
        assert numeric(a, sizes) == numeric(b, sizes)


# --- what is proved


def test_a_multiple_is_divided_without_a_rest():
    known = ShapeFacts({n: Range(1, 512, 8, (128, 256)), m: Range(0, 64)})
    assert known.equal(n // 4 * 32, n * 8)
    assert known.same_product([n, m], [n // 4, 4, m])
    assert not known.same_product([n, m], [n // 16, 16, m])
    assert known.bounds(n // 4 * m) == Bounds(0, 8192) and known.bounds(n - m) == Bounds(-56, 512)
    assert (known.multiple_of(n * 3 + 16), known.multiple_of(n // 2), known.multiple_of(m)) == (
        8,
        4,
        1,
    )
    assert known.multiple_of(n - n) == 0 and known.multiple_of(tirx.const(12, "int64")) == 12
    assert known.likely(n // 2 + 1) == (65, 129) and known.likely(n + m) == ()
    assert known.holds(n >= 8) is True and known.holds(n > 512) is False
    assert known.holds(m > 4) is None
    assert known.bounds(s) == Bounds(None, None)


def test_sizes_without_promises_are_not_negative():
    known = ShapeFacts({n: Range(), m: Range()})
    assert known.bounds(n * m) == Bounds(0, None) and known.holds(n >= 0)
    assert not known.equal(n // 4 * 4, n)


@R.function
def reshaped(x: R.Tensor(("n", "h"), "float32"), shape: R.Shape(["k"])):
    n, h, k = T.int64(), T.int64(), T.int64()
    with R.dataflow():
        a = R.reshape(x, (n * h // 4, 4))
        b = R.match_cast(a, R.Tensor((k * 2, 4), "float32"))
        R.output(b)
    return b


def test_relations_hold_from_their_check_on():
    func = CheckReshapes()(module(reshaped))["main"]
    known = facts(func)
    (n, h), (k,) = func.params[0].ty.shape.values, func.params[1].ty.values
    assert [str(each) for each in known.relations] == [
        "n * h // 4 * 4 = n * h (a check)",
        "n * h // 4 = k * 2 (a cast)",
    ]
    a, b = [each.var for each in func.body.blocks[0].bindings][-2:]
    more, less = n * h * 5, n * h // 4 * 20
    assert not known.equal(more, less) and not known.equal(more, less, at=func.params[0])
    assert known.equal(more, less, at=a)
    assert not known.equal(n * h, k * 8, at=b)  # the cast comes to be checked there
    assert k not in known.ranges  # a number in a shape may be anything, until a tensor has it


def test_facts_of_a_function_are_those_of_its_attributes():
    func = reshaped.with_attr("tir_var_upper_bound", {"n": 64, "k": 7, "other": 3})
    known = facts(func.with_attr("moonpoly.multiple_of", {"n": 4}))
    n, h = func.params[0].ty.shape.values
    (k,) = func.params[1].ty.values
    assert dict(known.ranges) == {n: Range(0, 64, 4), h: Range(), k: Range(0, 7)}
    assert known.equal(n * h // 4 * 4, n * h)
    bare = facts(reshaped)
    assert bare.ranges[n] == Range() and not bare.equal(n * h // 4 * 4, n * h)


def test_facts_of_a_prim_func():
    @T.prim_func(s_tir=True)
    def copy(a: T.handle, b: T.handle, k: T.int64):
        T.func_attr({"tir_var_upper_bound": {"n": 32}, "moonpoly.multiple_of": {"n": 16}})
        n = T.int64()
        x = T.match_buffer(a, [n, 4], "float32")
        y = T.match_buffer(b, [n, 4], "float32")
        for i, j in T.grid(n, 4):
            with T.sblock("copy"):
                vi, vj = T.axis.remap("SS", [i, j])
                y[vi, vj] = x[vi, vj]

    known = facts(copy)
    (name,) = known.ranges
    assert known.ranges[name] == Range(0, 32, 16)
    rest = known.simplify(name - name // 16 * 16)
    assert isinstance(rest, tirx.IntImm) and int(rest) == 0


def test_the_cost_of_a_proof_is_bounded():
    """Rules that replace each other end."""
    from relax_passes.element_count import equal_given

    assert not equal_given(n, m + 1, [(n, m), (m, n), (n * n, m)])
    assert equal_given(n * n * math.prod([3, 5]), m * m * 15, [(n, m)])
