"""What is of a wrong type raises one sentence that names argument and rule, before all else."""

import inspect

import numpy as np
import pytest
import tvm
from relax_testing import TARGET
from tvm import relax

import relax_passes
import tvm_moonpoly as mp
from relax_passes.steps import run_steps
from tvm_moonpoly.operators import ConvSpec

#: All options of `mp.pipeline` that are switches.
FLAGS = [
    name
    for name, each in inspect.signature(mp.pipeline).parameters.items()
    if isinstance(each.default, bool)
]
SPEC = ConvSpec((3, 3), 8, 8)


@pytest.mark.parametrize("flag", FLAGS)
@pytest.mark.parametrize("value", ["no", 1, None])
def test_each_flag_of_the_pipeline(flag, value):
    with pytest.raises(ValueError) as caught:
        mp.pipeline(TARGET, **{flag: value})
    assert str(caught.value) == f"{flag}: must be True or False, not {value!r}"


@pytest.mark.parametrize(
    "options, said",
    [
        ({"report": 3}, "report: must be a Report, not 3"),
        ({"steps": 3}, "steps: must be a list, not 3"),
        ({"without": "JoinNorms"}, "without: must be a list of names, such as ['A'], not 'JoinN"),
        ({"without": [1]}, "without: must be a list of names, not [1]"),
        ({"dims": ["n"]}, "dims: must be a dict by names, such as {'n': ...}, not ['n']"),
        ({"dims": {1: (1, 2)}}, "dims: must be a dict by names, of which each is a string, not 1"),
        ({"dims": {"n": 3}}, "dims: 'n' must be a Range or two numbers, not 3"),
        ({"target": 3}, "target: must be a tvm Target, its tag or a dict, not 3"),
        ({"target": "lvm"}, "target: 'lvm' is none: Target kind \"lvm\" is not defined"),
    ],
    ids=str,
)
def test_other_arguments_of_the_pipeline(options, said):
    with pytest.raises(ValueError) as caught:
        mp.pipeline(**{"target": TARGET, **options})
    assert str(caught.value).startswith(said)


@pytest.mark.parametrize("without", [None, (), [], frozenset()], ids=str)
def test_no_names_leave_nothing_out(without):
    mp.pipeline(TARGET, without=without)
    steps = []
    run_steps([relax.transform.DeadCodeElimination()], tvm.IRModule({}), without, steps)
    assert [step.name for step in steps] == ["DeadCodeElimination"]


TAKES_TARGET = [
    relax_passes.ConvertToChannelsLast,
    relax_passes.FoldIntoConvolutions,
    relax_passes.FuseAttention,
    relax_passes.JoinNorms,
    relax_passes.KeepNaN,
    relax_passes.NormalizeOperators,
    relax_passes.PolymerizeConvolutions,
    relax_passes.PolymerizeDynamicOps,
    relax_passes.ScheduleMemoryBound,
    relax_passes.SearchRows,
    relax_passes.VectorMath,
]


@pytest.mark.parametrize("each", TAKES_TARGET, ids=lambda each: each.__name__)
def test_the_target_of_a_pass(each):
    with pytest.raises(ValueError, match="^target: must be a tvm Target, its tag or a dict, not 3"):
        each(3)


@pytest.mark.parametrize(
    "make, said",
    [
        (lambda: relax_passes.PolymerizeDynamicOps(TARGET, 3), "report: must be a Report, not 3"),
        (lambda: relax_passes.PolymerizeConvolutions(TARGET, winograd=0), "winograd: must be True"),
        (lambda: relax_passes.PolymerizeDynamicOps(TARGET, verify="x"), "verify: must be True or"),
        (lambda: relax_passes.FuseAttention(TARGET, static="x"), "static: must be True or False"),
        (lambda: relax_passes.FuseAttention(TARGET, True), "report: must be a Report, not True"),
        (lambda: relax_passes.ConvertToChannelsLast(TARGET, 2), "static: must be True or False"),
        (lambda: relax_passes.NormalizeOperators(TARGET, False, 2), "pack_parameters: must be T"),
        (lambda: relax_passes.FoldIntoConvolutions(TARGET, 2), "static: must be True or False"),
        (lambda: relax_passes.PromiseShapes(["n"]), "dims: must be a dict by names"),
        (lambda: relax_passes.CheckOperands("relax.matmul"), "operators: must be a list of Relax"),
        (lambda: relax_passes.facts(3), "func: must be a Relax function or a PrimFunc, not 3"),
        (lambda: mp.Range(likely=3), "Range: likely must be a list of sizes, not 3"),
        (lambda: mp.Range("a"), "Range: smallest must be a whole number from 0 on, not 'a'"),
        (lambda: mp.Range(10, 8), "Range: smallest must be at most largest, not 10 with largest 8"),
        (lambda: mp.detect_target("2"), "cores: must be a whole number of at least 1, not '2'"),
        (lambda: mp.import_onnx(3), "model: must be a path or an onnx.ModelProto, not <class 'i"),
        (lambda: mp.import_onnx("x.onnx", [3]), "dims: must be a dict by names, such as"),
        (lambda: mp.import_onnx("x.onnx", {3: 3}), "dims: must be a dict by names, of which"),
        (lambda: mp.explain("1", 2, 3), "m: must be a whole number of at least 1, not '1'"),
        (lambda: mp.explain(1, 2, None), "k: must be a whole number of at least 1, not None"),
        (lambda: mp.explain(1, 2, 3, target=3), "target: must be a tvm Target"),
        (lambda: mp.explain(1, 2, 3, threads=1.5), "threads: must be a whole number of at least"),
        (lambda: mp.explain(1, 2, 3, constant_weights="no"), "constant_weights: must be True or"),
        (lambda: mp.explain(1, 2, 3, b_transposed="no"), "b_transposed: must be True or False"),
        (lambda: mp.explain(1, 2, 3, dtype=3), "dtype: must be float16 or bfloat16, not 3"),
        (lambda: mp.explain_conv2d(1, 8, 8, 3), "spec: must be a ConvSpec, not 3"),
        (lambda: mp.explain_conv2d(True, 8, 8, SPEC), "n: must be a whole number of at least 1"),
        (lambda: mp.explain_conv2d(1, 8, 8, SPEC, half=2), "half: must be True or False, not 2"),
    ],
)  # fmt: skip
def test_arguments_of_the_other_entries(make, said):
    with pytest.raises(ValueError) as caught:
        make()
    assert str(caught.value).startswith(said)


def test_integers_of_numpy_are_sizes():
    four = np.int64(4)
    assert str(mp.explain(four, four, four, TARGET)) == str(mp.explain(4, 4, 4, TARGET))
    each = mp.Range(np.int32(2), four, np.int8(2), [four])
    assert each == mp.Range(2, 4, 2, (4,)) and type(each.largest) is type(each.likely[0]) is int
    with pytest.raises(ValueError, match="smallest must be a whole number from 0 on, not True"):
        mp.Range(True)


def test_an_empty_report_is_one():
    assert relax_passes.Report()


def test_a_pass_that_is_misspelt_is_guessed():
    passes = [relax.transform.DeadCodeElimination()]
    said = r"'DeadCodeElimination_' is none of the passes \(did you mean 'DeadCodeElimination'\?\)"
    with pytest.raises(ValueError, match=said):
        run_steps(passes, tvm.IRModule({}), ["DeadCodeElimination_"])
