"""The fuzzer of bench/fuzz: a short run of it, and that it finds faults."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from core_testing import ROOT

from bench.fuzz import bounds, compiled, crew, memory, reference, report, worker
from bench.fuzz.bounds import Value
from bench.fuzz.draw import KINDS, draw_form
from bench.fuzz.execute import Outcome, Verdict
from bench.fuzz.graph import Dim, Form, Input, Node, Role, static, walk
from bench.fuzz.inject import KINDS as FAULTS
from bench.fuzz.inject import QUICK_KINDS
from bench.fuzz.run import RUNS, draw_run
from bench.fuzz.values import Regime, numpy_dtype

linux = pytest.mark.skipif(sys.platform != "linux", reason="mprotect is called as on Linux")


def fuzz(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "bench.fuzz", *arguments],
        cwd=ROOT,
        env={**os.environ, "COLUMNS": "200"},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )


# --- a short run


@linux
def test_short_run_finds_nothing(target):
    ran = fuzz("--cases", "500", "--seed", "1")
    assert ran.returncode == 0, ran.stdout + ran.stderr[-2000:]
    assert "500 cases of seed 1" in ran.stdout


# --- faults are found


@linux
def test_faults_made_on_purpose_are_found(target):
    ran = fuzz("--inject", "all", "--cases", "90")
    assert ran.returncode == 0, ran.stdout + ran.stderr[-2000:]
    for kind in QUICK_KINDS:
        made, found = map(int, re.findall(rf"{kind} +│ +(\d+) +│ +(\d+) ", ran.stdout)[0])
        assert made == found > 0, ran.stdout


@linux
def test_a_call_that_does_not_return_is_ended(target):
    ran = fuzz("--inject", "hang", "--cases", "2", "--patience", "3")
    assert ran.returncode == 0, ran.stdout + ran.stderr[-2000:]
    assert re.search(r"hang +│ +2 +│ +2 ", ran.stdout)


@linux
def test_one_case_alone_prints_its_module(target):
    ran = fuzz("--case", "3", "--inject", "value", "--together")
    assert ran.returncode == 1
    assert "def form_0(" in ran.stdout and "R.matmul" in ran.stdout
    assert ran.stdout.splitlines()[-1].startswith("wrong: output 0: 1 of ")


def test_a_task_has_the_forms_of_its_cases_or_of_its_whole_module():
    task = worker.Task((RUNS * 9, RUNS * 9 + 1, RUNS * 10))
    assert task.forms == [9, 10]
    assert [each.forms for each in task.apart()] == [[9], [10]]
    assert replace(task, together=True).forms == list(range(8, 16))


def outcome(case: int, verdict: Verdict, **options: object) -> Outcome:
    return Outcome(case, "vector", verdict, "because", **options)


def test_a_line_says_how_to_see_a_fault_again():
    line = report.fault_line(7, outcome(1234, Verdict.WRONG))
    assert line == "wrong: vector: python -m bench.fuzz --seed 7 --case 1234  # because"
    faults = [outcome(RUNS * 2 + i, Verdict.WRONG) for i in (5, 3)]
    faults += [outcome(0, Verdict.WRONG), outcome(1, Verdict.CRASHED)]
    found = [(each.case, count) for each, count in report.one_of_each_form(faults)]
    assert found == [(0, 1), (1, 1), (RUNS * 2 + 3, 2)]


def test_the_table_counts_every_case_once():
    columns = [verdict for _, verdicts in report.COLUMNS for verdict in verdicts]
    assert sorted(columns, key=str) == sorted(Verdict, key=str)
    faults = {verdict for _, verdicts in report.COLUMNS[-2:] for verdict in verdicts}
    assert faults == {verdict for verdict in Verdict if verdict.is_fault}
    outcomes = [outcome(0, Verdict.RIGHT, rewritten=2), outcome(1, Verdict.HUNG, left=1)]
    rendered = report.table(outcomes)
    last = [list(column.cells)[-1] for column in rendered.columns]
    assert [str(cell) for cell in last] == ["all", "1", "2", "1", "1", "1", "", "", "", "", "1"]


def test_a_fault_that_was_made_and_not_found_is_missed():
    outcomes = [
        outcome(0, Verdict.RIGHT, injected="value"),
        outcome(1, Verdict.WRONG, injected="value"),
        outcome(2, Verdict.WRONG, injected="beyond"),  # it should have crashed
    ]
    _, missed = report.injected_table(outcomes)
    assert [each.case for each in missed] == [0, 2]
    assert set(QUICK_KINDS) < set(FAULTS)


@pytest.mark.parametrize("possible", [True, False])
def test_a_form_that_only_our_pipeline_does_not_compile_is_a_fault(monkeypatch, possible):
    def fail(forms, *_):
        raise RuntimeError("\nthe first line\nmore")

    monkeypatch.setattr(worker, "compile_forms", fail)
    monkeypatch.setattr(worker, "plain_compiles", lambda *_: possible)
    outcomes: list[Outcome] = []
    worker.run_task(worker.Task((0, 1, RUNS)), worker.Options(0), outcomes.append)
    assert [each.case for each in outcomes] == [0, 1, RUNS]
    assert {each.detail for each in outcomes} == {"RuntimeError: the first line"}
    assert {each.verdict.is_fault for each in outcomes} == {possible}


def test_a_compiler_that_dies_is_laid_to_one_form():
    process = crew.multiprocessing.get_context("spawn").Process(target=os._exit, args=(3,))
    process.start()
    ours, _ = crew.multiprocessing.Pipe()
    member = crew._Member(process, ours, worker.Task((0, 1, RUNS, RUNS + 1)), {0})
    outcomes: list[Outcome] = []
    again = crew._after_death(member, worker.Options(0), outcomes.append)
    assert again == [worker.Task((1,)), worker.Task((RUNS, RUNS + 1))] and not outcomes
    member.task, member.reported = again[1], set()
    (last,) = crew._after_death(member, worker.Options(0), outcomes.append)
    assert last.cases == (RUNS, RUNS + 1) and last.failure.endswith("exit status 3")
    member.task = last  # TVM alone dies of it as well
    assert crew._after_death(member, worker.Options(0), outcomes.append) == []
    assert [each.case for each in outcomes] == [RUNS, RUNS + 1]
    assert all(each.verdict is Verdict.REFUSED for each in outcomes)


def test_a_compiler_that_hangs_is_ended(monkeypatch):
    """The task of the first worker is taken from it, and what is left of it given to others."""

    class Deaf:
        exitcode = None

        def start(self):
            pass

        def kill(self):
            self.exitcode = -9
            self.theirs.close()

        terminate = kill

        def join(self):
            pass

    hired = []

    def hire(options):
        process = Deaf()
        ours, process.theirs = crew.multiprocessing.Pipe()
        member = crew._Member(process, ours)
        hired.append(member)
        return member

    monkeypatch.setattr(crew, "_hire", hire)
    outcomes: list[Outcome] = []
    task = worker.Task((0, 1))
    crew.run_tasks([task], 1, worker.Options(0, "", 0.1, 0.1), outcomes.append)
    assert len(hired) == 3
    assert [each.verdict for each in outcomes] == [Verdict.REFUSED] * 2
    assert "did not end in time; without us, it did not end in time" in outcomes[0].detail


# --- what is drawn


def test_draws_depend_on_seed_and_number_alone():
    for index in (0, 17, 123):
        form = draw_form(5, index)
        assert form == draw_form(5, index)
        first, second = (draw_run(form, 5, index * RUNS + 3) for _ in range(2))
        assert first.sizes == second.sizes and first.sides == second.sides
        for name, array in first.arrays.items():
            assert array.tobytes() == second.arrays[name].tobytes()
    assert len({draw_form(seed, 0) != draw_form(5, 0) for seed in range(5)}) == 1
    assert compiled.draw_way(5, 2) == compiled.draw_way(5, 2)


@pytest.fixture(scope="module")
def forms() -> list[Form]:
    return [draw_form(1, index) for index in range(400)]


def test_all_forms_are_drawn(forms):
    assert {form.kind for form in forms} == set(KINDS)
    operators = {node.op for form in forms for node in walk(form.nodes)}
    assert operators == {*reference.RULES, "matmul", "reshape", "branch", "call"}
    inputs = [each for form in forms for each in form.inputs]
    ranks = {len(each.dims) for each in inputs}
    assert ranks >= {0, 1, 2, 3, 4, 5}
    assert {each.dtype for each in inputs} == {
        *("float32", "float64", "float16", "bfloat16", "int8", "int32", "int64", "bool")
    }
    assert {each.role for each in inputs} == set(Role)
    assert any(each.only_rank for each in inputs)
    dims = {dim for each in inputs for dim in each.dims}
    assert any(dim.times > 1 for dim in dims) and any(dim.over > 1 for dim in dims)
    assert any(dim.symbol and dim.plus for dim in dims)
    assert {pair.how for form in forms for pair in form.pairs} == {
        *("contraction", "batch", "multiple")
    }
    assert max(len(form.outputs) for form in forms) >= 3
    assert any(form.bounds for form in forms) and any(not form.dataflow for form in forms)
    assert any(form.undefined_symbols() for form in forms)


def test_sizes_are_drawn_around_the_tiles_and_at_the_ends(forms):
    sizes = {"batch": set(), "m": set(), "n": set(), "k": set()}
    regimes = set()
    for form in forms[:150]:
        for case in range(form.index * RUNS, form.index * RUNS + 10):
            run = draw_run(form, 1, case)
            regimes.add(run.regime)
            for symbol, purpose in form.symbols.items():
                sizes[purpose].add(run.sizes[symbol])
    assert all(each >= {0, 1, 2, 3} for each in sizes.values())
    assert sizes["n"] >= {7, 8, 9, 15, 16, 17, 23, 24, 25, 31, 32, 33}
    assert sizes["m"] >= {4, 6, 8, 9, 16, 17} and max(sizes["m"]) > 500
    assert regimes == set(Regime)


def test_every_form_has_a_reference(forms):
    """And a case has a result, or two sizes that do not fit because the form leaves that open."""
    mismatches = 0
    for form in forms:
        run = draw_run(form, 1, form.index * RUNS)
        try:
            values = reference.evaluate(form, run.arrays, run.sizes)
        except reference.Mismatch as mismatch:
            assert form.pairs and not mismatch.plain
            mismatches += 1
            continue
        assert len(values) == len(form.outputs)
        for value in values:
            assert value.exact.shape == value.error.shape == value.anything.shape
            assert not np.isnan(value.error[~value.anything]).any()
    assert mismatches > 5


# --- the reference and its bounds


def product_form(dtype="float32", *steps: tuple[str, tuple[str, ...]]) -> Form:
    """a @ b, then steps on it."""
    m, k, n = Dim("m"), Dim("k"), Dim("n")
    inputs = [Input("a", (m, k), dtype), Input("b", (k, n), dtype), Input("e", (n,), dtype)]
    nodes = [Node("y", "matmul", ("a", "b"), {"out_dtype": None})]
    nodes += [Node(f"y{i}", op, args) for i, (op, args) in enumerate(steps)]
    symbols = {"m": "m", "k": "k", "n": "n"}
    return Form(0, "two operands", tuple(inputs), tuple(nodes), (nodes[-1].name,), symbols)


def arrays_of(rng, m, k, n, dtype="float32"):
    kind = numpy_dtype(dtype)
    shapes = {"a": (m, k), "b": (k, n), "e": (n,)}
    return {name: rng.standard_normal(shape).astype(kind) for name, shape in shapes.items()}


def value_of(form, arrays):
    return reference.evaluate(form, arrays, {})[0]


SHAPES = [(1, 1, 1), (3, 7, 5), (17, 129, 33), (8, 2049, 4), (5, 0, 3), (0, 4, 3)]


@pytest.mark.parametrize("m,k,n", SHAPES)
def test_float32_arithmetic_is_within_the_bound(m, k, n):
    rng = np.random.default_rng([m, k, n])
    arrays = arrays_of(rng, m, k, n)
    a, b, e = (arrays[name] for name in "abe")
    plain = product_form()
    assert reference.fault(a @ b, value_of(plain, arrays)) is None
    one_by_one = np.zeros((m, n), np.float32)
    for i in range(k):  # the worst order
        one_by_one += a[:, i : i + 1] * b[i]
    assert reference.fault(one_by_one, value_of(plain, arrays)) is None
    steps = [("add", ("y", "e")), ("relu", ("y0",)), ("multiply", ("y1", "e"))]
    form = product_form("float32", *steps)
    result = np.maximum(one_by_one + e, 0) * e
    assert reference.fault(result, value_of(form, arrays)) is None
    in_the_accumulator = np.broadcast_to(e, (m, n)).copy()
    for i in range(k):
        in_the_accumulator += a[:, i : i + 1] * b[i]
    form = product_form("float32", ("add", ("e", "y")))
    assert reference.fault(in_the_accumulator, value_of(form, arrays)) is None


@pytest.mark.parametrize("m,k,n", SHAPES[1:4])
def test_faults_of_a_product_are_outside_the_bound(m, k, n):
    arrays = arrays_of(np.random.default_rng([m, k, n]), m, k, n)
    a, b, e = (arrays[name] for name in "abe")
    value = value_of(product_form(), arrays)
    assert reference.fault(a[:, :-1] @ b[:-1], value) is not None  # the last k was left out
    assert reference.fault(a @ b[:, ::-1], value) is not None
    if k < 1000:  # rounding to half precision is a small error beside that of a long sum
        assert reference.fault((a @ b).astype(np.float16).astype(np.float32), value) is not None
    assert reference.fault((a @ b).T, value) is not None
    assert reference.fault((a @ b).astype(np.float64), value) is not None
    leaked = a @ b
    leaked[-1, -1] = np.nan
    assert reference.fault(leaked, value) is not None
    biased = value_of(product_form("float32", ("add", ("y", "e"))), arrays)
    assert reference.fault(a @ b, biased) is not None
    assert reference.fault(a @ b + np.roll(e, 1), biased) is not None
    off = (value.exact + 1.01 * value.error + 1e-6 * np.abs(value.exact)).astype(np.float32)
    assert reference.fault(off, value) is not None


def test_half_precision_is_summed_in_single_and_rounded_once():
    arrays = {
        "a": np.ones((1, 4096), np.float16),
        "b": np.ones((4096, 2), np.float16),
        "e": np.zeros(2, np.float16),
    }
    value = value_of(product_form("float16"), arrays)
    assert reference.fault(np.full((1, 2), 4096, np.float16), value) is None
    assert reference.fault(np.full((1, 2), 2048, np.float16), value) is not None
    assert reference.fault(np.full((1, 2), 4100, np.float16), value) is not None
    plain = reference.evaluate(product_form("float16"), arrays, {}, {"y"})[0]
    assert reference.fault(np.full((1, 2), 2048, np.float16), plain) is None


def test_nan_and_infinity_stay_where_they_belong():
    arrays = arrays_of(np.random.default_rng(2), 4, 3, 5)
    arrays["a"][1, 2] = np.nan
    arrays["a"][2, 0] = np.inf
    value = value_of(product_form(), arrays)
    with np.errstate(invalid="ignore"):
        result = arrays["a"] @ arrays["b"]
    assert reference.fault(result, value) is None
    for where, other in (
        ((1, 0), 0.0),
        ((2, 3), -result[2, 3]),
        ((2, 3), np.nan),
        ((0, 0), np.inf),
    ):
        changed = result.copy()
        changed[where] = other
        assert reference.fault(changed, value) is not None


def test_sums_that_may_overflow_are_not_judged():
    arrays = arrays_of(np.random.default_rng(3), 2, 4, 3)
    arrays["a"][0] *= np.float32(1e38)
    value = value_of(product_form(), arrays)
    assert value.anything[0].any() and not value.anything[1].any()


@pytest.mark.parametrize("dtype", ["int8", "int32", "int64"])
def test_integers_are_exact(dtype):
    rng = np.random.default_rng(4)
    arrays = {
        name: rng.integers(-128, 128, shape).astype(dtype)
        for name, shape in {"a": (3, 300), "b": (300, 4), "e": (4,)}.items()
    }
    value = value_of(product_form(dtype), arrays)
    exact = arrays["a"].astype(np.int64) @ arrays["b"].astype(np.int64)
    assert reference.fault(exact.astype(dtype), value) is None
    assert reference.fault((exact + 1).astype(dtype), value) is not None


@pytest.mark.parametrize("name", list(bounds.ACTIVATIONS))
def test_activations_have_no_greater_slope_than_is_said(name):
    function, slope, _ = bounds.ACTIVATIONS[name]
    x = np.linspace(-20, 20, 400_001)
    slopes = np.abs(np.diff(function(x)) / np.diff(x))
    assert 0.95 * slope < slopes.max() <= slope


def test_sizes_that_do_not_fit_are_a_mismatch():
    form = product_form()
    arrays = arrays_of(np.random.default_rng(5), 2, 3, 4)
    with pytest.raises(reference.Mismatch, match="contraction: 3 and 2") as raised:
        reference.evaluate(form, {**arrays, "b": arrays["b"][:2]}, {}, {"y"})
    assert raised.value.sizes == (3, 2) and raised.value.plain
    batched = {**arrays, "a": np.ones((2, 1, 3), np.float32), "b": np.ones((3, 3, 4), np.float32)}
    with pytest.raises(reference.Mismatch, match="batch: 2 and 3"):
        reference.evaluate(form, batched, {})
    one = {**batched, "a": np.ones((1, 1, 3), np.float32)}
    assert value_of(form, one).exact.shape == (3, 1, 4)


def test_an_empty_sum_is_zero_but_not_in_plain_tvm():
    form = product_form()
    arrays = arrays_of(np.random.default_rng(6), 2, 0, 3)
    stale = np.full((2, 3), 7, np.float32)
    assert reference.fault(np.zeros((2, 3), np.float32), value_of(form, arrays)) is None
    assert reference.fault(stale, value_of(form, arrays)) is not None
    assert reference.fault(stale, reference.evaluate(form, arrays, {}, {"y"})[0]) is None


def test_infinity_times_what_may_be_zero_is_not_judged():
    tiny = Value(np.array([1e-9, 1.0]), np.array([1e-8, 1e-8]), np.zeros(2, bool), "float32")
    infinite = Value.of(np.array([np.inf, np.inf], np.float32), "float32")
    with np.errstate(invalid="ignore"):
        product = bounds.multiply(tiny, infinite)
    assert product.anything.tolist() == [True, False]


# --- guarded memory


@pytest.mark.parametrize("side", ["begin", "end"])
@pytest.mark.parametrize("padding", [0, 3])
@pytest.mark.parametrize("shape", [(), (5,), (3, 4), (2, 1, 7), (0, 3), (600, 3)])
def test_writes_beside_a_tensor_are_seen(shape, padding, side):
    pool = memory.Pool()
    dtype = np.dtype(np.float32)
    placed = pool.place(shape, dtype, side, alignment=4, padding=padding)
    placed.array[...] = np.arange(placed.array.size).reshape(shape)
    if placed.array.size == 0:
        assert not placed.stray_write()
        return
    address = placed.memory.ctypes.data
    first = placed.array.ctypes.data
    last = first + sum((n - 1) * s for n, s in zip(shape, placed.array.strides, strict=True)) + 4
    assert (first == address) if side == "begin" else (last == address + len(placed.memory))
    assert np.array_equal(placed.array.ravel(), np.arange(placed.array.size))
    assert not placed.stray_write()
    inside = range(first - address, last - address)
    outside = (set(range(len(placed.memory))) - set(inside)) or {None}
    where = min(outside, key=lambda at: -1 if at is None else at)
    if where is not None:
        placed.memory[where] = 0
        assert placed.stray_write()
    pool.release()
    again = pool.place(shape, dtype, side, alignment=4, padding=padding)
    assert again.memory.ctypes.data == address and not again.stray_write()


def test_a_gap_between_rows_is_beside_the_tensor():
    placed = memory.Pool().place((3, 4), np.dtype(np.float32), "end", 4, padding=2)
    placed.array[...] = 1
    assert not placed.stray_write()
    at = placed.array.ctypes.data - placed.memory.ctypes.data + 4 * 4
    placed.memory[at] = 0
    assert placed.stray_write()


def test_alignment_is_kept_at_the_end():
    placed = memory.Pool().place((5,), np.dtype(np.float32), "end", memory.ALIGNMENT)
    assert placed.array.ctypes.data % memory.ALIGNMENT == 0
    behind = placed.memory.ctypes.data + len(placed.memory) - placed.array.ctypes.data
    assert behind < 20 + memory.ALIGNMENT


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8", "bool", "float64"])
def test_tensors_share_their_memory(dtype):
    kind = numpy_dtype(dtype)
    array = memory.Pool().place((3, 5), kind, "end", kind.itemsize).array
    array[...] = np.arange(15).reshape(3, 5) % 2
    tensor = memory.tensor(array)
    assert tensor.data_ptr() == array.ctypes.data and str(tensor.dtype) == dtype
    assert memory.copied(tensor).tobytes() == array.tobytes()
    array[0, 0] = 1
    assert memory.copied(tensor)[0, 0] == 1


def test_an_empty_tensor_has_the_strides_that_tvm_expects():
    tensor = memory.tensor(np.empty((3, 0), np.float32))
    assert tuple(tensor.shape) == (3, 0) and tuple(tensor.strides) == (0, 1)


# --- the forms' functions


def test_undefined_symbols_are_given_as_a_shape():
    form = product_form()
    inputs = (Input("a", (Dim("m", 2), Dim("k"))), Input("b", (Dim("k"), static(4))))
    assert replace(form, inputs=inputs).undefined_symbols() == ["m", "n"]
