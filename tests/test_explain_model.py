"""``moonpoly explain model.onnx``: passes, sizes, memory and times of a model."""

from __future__ import annotations

import json

import numpy as np
import onnx
import pytest
import tvm
from onnx import TensorProto, helper, numpy_helper

from relax_passes import Range, pipeline
from relax_passes.steps import NEEDED
from tvm_moonpoly import model_explanation
from tvm_moonpoly.cli import main
from tvm_moonpoly.machine import detect_target
from tvm_moonpoly.model_explanation import explained_model, sizes
from tvm_moonpoly.model_explanation.kinds import ELEMENTWISE, kind_of
from tvm_moonpoly.onnx_import.load import load


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    """softmax(relu(x w + b) reshaped), and a convolution: two dynamic dimensions, one unnamed."""
    rng = np.random.default_rng(3)

    def weight(name, *shape):
        return numpy_helper.from_array(rng.standard_normal(shape).astype("float32"), name)

    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"]),
        helper.make_node("Add", ["a", "b"], ["c"]),
        helper.make_node("Relu", ["c"], ["d"]),
        helper.make_node("Reshape", ["d", "shape"], ["e"]),
        helper.make_node("Softmax", ["e"], ["y"], axis=-1),
        helper.make_node("Conv", ["image", "k"], ["z"], kernel_shape=[1, 1]),
        helper.make_node("MatMul", ["a", "a^T"], ["g"]),
        helper.make_node("Transpose", ["a"], ["a^T"], perm=[0, 2, 1]),
    ]
    nodes[-2:] = nodes[:-3:-1]
    given = [("x", ["batch", "seq", 16]), ("image", [1, 3, None, 8])]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in given],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in "yzg"],
        [
            weight("w", 16, 32),
            weight("b", 32),
            weight("k", 8, 3, 1, 1),
            numpy_helper.from_array(np.array([-1, 8], np.int64), "shape"),
        ],
    )
    file = tmp_path_factory.mktemp("model") / "Tiny.ONNX"
    opset = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=8), file)
    return file


@pytest.fixture(scope="module")
def explained(path):
    model = load(path, {"seq": Range(4, 64, 4), "batch": (1, 8)})
    given = {"batch": 2, "x:1": 12, "image_2": 5}
    return explained_model(model.module, model.inputs, detect_target(), sizes=given)


@pytest.fixture
def run(capsys):
    def call(*arguments):
        capsys.readouterr()
        code = main(["explain", *map(str, arguments)])
        printed = capsys.readouterr()
        assert "Traceback" not in printed.err
        return code, printed.out, printed.err

    return call


def test_what_each_pass_changed(explained):
    ours = {change.name: change for change in explained.ours.changes}
    rewritten = ours["PolymerizeDynamicOps"].calls
    assert rewritten["matmul"] == -2 and rewritten["moonpoly_linear_f32"] == 1
    assert rewritten["moonpoly_matmul_f32"] == 1
    assert ours["PolymerizeConvolutions"].calls["moonpoly_conv2d_f32"] == 1
    assert ours["ScheduleMemoryBound"].loops > 0
    assert "loop nest" in str(ours["ScheduleMemoryBound"])
    assert str(ours["OwnVariables"]) == "-"
    of_tvm = {change.name for change in explained.plain.changes}
    assert "PolymerizeDynamicOps" not in of_tvm and "StaticPlanBlockMemory" in of_tvm


def test_the_time_of_each_function_measured_and_predicted(explained):
    found = explained.ours.profile
    times = {each.name: each for each in found.functions}
    assert 0 < sum(each.seconds for each in found.functions) < 100 * found.total + 1e-2
    linear = times["moonpoly_linear_f32"]
    assert (
        linear.calls == 1 and linear.shapes[0] == (2, 12, 16) and linear.shapes[-1] == (2, 12, 32)
    )
    for name in ("moonpoly_linear_f32", "moonpoly_matmul_f32", "moonpoly_conv2d_f32"):
        cost = explained.predicted[times[name].key]
        assert 1e-9 < cost < 1e-3
    assert not any(each.name.startswith("moonpoly") for each in explained.plain.profile.functions)
    assert found.machine.calls > 5


def test_predictions_are_those_of_explain_matmul(explained):
    from tvm_moonpoly.explanation import explained as explained_product

    (key,) = [key for key in explained.predicted if key[0] == "moonpoly_linear_f32"]
    alone = explained_product(24, 32, 16, detect_target())
    assert explained.predicted[key] == pytest.approx(alone.best.picoseconds * 1e-12)


def test_memory_of_a_call(explained):
    memory = explained.ours.memory
    assert memory.storages <= memory.tensors
    results = 4 * (2 * 12 * 32 + 8 * 5 * 8 + 2 * 12 * 12)
    assert results <= memory.peak < 100 * results


def test_what_is_known_of_sizes(explained):
    from tvm_moonpoly.model_explanation.as_data import facts_json

    known = {each["size"]: each for each in facts_json(explained.facts, explained.function)}
    assert known["seq"] == {
        "size": "seq",
        "dimension": True,
        "smallest": 4,
        "largest": 64,
        "multiple_of": 4,
        "likely": [],
    }
    assert known["batch"]["largest"] == 8 and known["image_2"]["largest"] is None
    (computed,) = [each for size, each in known.items() if "batch * seq" in size]
    assert computed["multiple_of"] % 16 == 0 and computed["largest"] == 8 * 64 * 4


def test_the_command_as_tables_and_json(run, path):
    code, text, err = run(path, "--dims", "batch=2,seq=12,image_2=5", "--dim", "seq=4:64:4")
    assert code == 0, err
    for part in (
        "input x: float32 (batch, seq, 16)",
        "what is known of sizes",
        "PolymerizeDynamicOps",
        "memory, plain TVM: peak",
        "time by kind of work with batch=2, seq=12, image_2=5",
        "functions in plain TVM",
        "predicted ms",
        "times as long",
    ):
        assert part in text
    arguments = ("--dims", "batch=2,seq=12,image_2=5", "--no-plain", "--json")
    code, text, err = run(path, *arguments)
    assert code == 0, err
    found = json.loads(text)
    assert found["sizes"] == {"batch": 2, "seq": 12, "image_2": 5} and found["plain"] is None
    functions = found["ours"]["profile"]["functions"]
    assert {"moonpoly_linear_f32", "moonpoly_conv2d_f32"} <= {each["name"] for each in functions}
    assert found["ours"]["memory"]["peak_bytes"] > 0 and found["rewritten"] == 3


def test_without_sizes_nothing_is_measured(run, path):
    code, text, err = run(path, "--no-plain")
    assert code == 0, err
    assert "times: give the size of each dynamic dimension by --dims" in text
    assert "depends on sizes" in text
    code, text, _ = run(path, "--no-plain", "--no-measure", "--dims", "batch=1,seq=1,image_2=1")
    assert code == 0 and "times: not measured" in text


def test_a_pass_left_out_is_seen(run, path):
    arguments = (path, "--no-plain", "--no-measure", "--json")
    code, text, err = run(
        *arguments, "--without", "PolymerizeDynamicOps,ScheduleMemoryBound", "--without", "FuseOps"
    )
    assert code == 0, err
    found = json.loads(text)
    names = [each["name"] for each in found["ours"]["passes"]]
    assert not {"PolymerizeDynamicOps", "ScheduleMemoryBound", "FuseOps"} & set(names)
    called = [name for each in found["ours"]["passes"] for name in each["calls"]]
    assert "moonpoly_linear_f32" not in called and "moonpoly_conv2d_f32" in called


@pytest.mark.parametrize(
    "arguments, code, reason",
    [
        (["--dims", "batch"], 2, "--dims: must be NAME=SIZE,..., not 'batch'"),
        (["--dims", "batch=2,batch=3"], 2, "--dims: 'batch' is named twice"),
        (["--dims", "batch=0"], 2, "--dims: must be a whole number of at least 1, not '0'"),
        (["--dims", "batch=2"], 2, "--dims: a size is missing for seq, image_2"),
        (["--dims", "n=2"], 2, "--dims: 'n' is no dynamic dimension; these are: batch, seq, image"),
        (["--dims", "batch=2,x:0=3"], 2, "--dims: 'batch' is given as 2 and as 3"),
        (
            ["--dim", "seq=4:64:4", "--dims", "batch=2,seq=6,image_2=5"],
            2,
            "--dims: 'seq' must be between 4 and 64 and a multiple of 4, not 6",
        ),
        (["--dim", "seq=4:64:4:4:4"], 2, "NAME=A:B:STEP:LIKELY, not 'seq=4:64:4:4:4'"),
        (["--dim", "seq=4:64:4:6"], 2, "--dim: the likely size 6 is not between 4 and 64"),
        (["--dim", "seq=9:15:8"], 2, "--dim: no multiple of multiple_of, 8, is from smallest, 9"),
        (["--dim", "seq=2", "--dim", "seq=3"], 2, "--dim: a dimension is named twice"),
        (["--without", "Nothing"], 2, "--without: 'Nothing' is none of the passes; these can be"),
        (
            ["--without", "LegalizeOps"],
            2,
            "--without: 'LegalizeOps' cannot be left out; these can ",
        ),
        (["--without", "FuseTIR"], 2, "--without: 'FuseTIR' cannot be left out; these can be: "),
        (["--target", "nvidia-a100"], 1, "--target: models are explained for CPUs, not for cuda"),
    ],
)
def test_bad_input(run, path, arguments, code, reason):
    found, _, err = run(path, "--no-plain", *arguments)
    assert found == code and reason in err


def test_a_model_that_is_none(run, tmp_path):
    code, _, err = run(tmp_path / "missing.onnx")
    assert code == 1 and "missing.onnx: No such file" in err
    (tmp_path / "broken.onnx").write_bytes(b"\xff\xff")
    code, _, err = run(tmp_path / "broken.onnx")
    assert code == 1 and "this is no ONNX model" in err


def test_every_pass_can_be_left_out_alone(path):
    """The virtual machine's functions still come to be."""
    model = load(path, {})
    steps = []
    target = detect_target()
    pipeline(target, steps=steps)(model.module)
    optional = [step.name for step in steps if step.name not in NEEDED]
    assert "LegalizeAroundViews" in optional and "PlanMemory" in optional
    for name in optional:
        left = pipeline(target, without=[name])(model.module)
        assert "vm.builtin.check_tensor_info" in left["main"].script()


@pytest.mark.parametrize(
    "name, kind",
    [
        ("fused_matmul1_add2", "products"),
        ("moonpoly_linear_residual_f32", "products"),
        ("moonpoly_conv2d_f32", "convolutions"),
        ("moonpoly_depthwise_f32", "convolutions"),
        ("fused_softmax1_cast", "softmax, norms, sums"),
        ("layer_norm", "softmax, norms, sums"),
        ("transpose3", "moves"),
        ("tir_exp", ELEMENTWISE),
        ("fused_add_multiply12", ELEMENTWISE),
    ],
)
def test_kinds_of_functions(name, kind):
    assert kind_of(name) == kind


def test_inputs_that_cannot_be_made():
    n = tvm.tirx.Var("n", "int64")
    with pytest.raises(model_explanation.SizeError, match=r"x:0, n - 4, is -2"):
        sizes.made_inputs([("x", "float32", [n - 4])], {"n": 2})
    (ids,) = sizes.made_inputs([("ids", "int64", [n, 3])], {"n": 2})
    assert ids.dtype == np.int64 and ids.tolist() == [[1, 1, 1]] * 2


def test_likely_sizes_are_those_of_the_call():
    """Unless others are given; each dynamic dimension must have one."""
    batch, seq = (tvm.tirx.Var(name, "int64") for name in ("batch", "seq"))
    inputs = [("x", "float32", (batch, seq, 16))]
    promised = {"batch": Range(likely=(2,)), "seq": Range(4, 64, 4, (8, 16))}
    assert sizes.are_likely(inputs, promised)
    assert not sizes.are_likely(inputs, {**promised, "batch": Range(1, 8)})
    assert sizes.sizes_of_call(inputs, {}, promised) == {"batch": 2, "seq": 8}
    assert sizes.sizes_of_call(inputs, {"x:1": 32}, promised) == {"seq": 32, "batch": 2}
    with pytest.raises(sizes.SizeError, match="a size is missing for batch"):
        sizes.sizes_of_call(inputs, {"seq": 4}, {})
