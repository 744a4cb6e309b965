"""Convolutions as TVM's importers bring them: from ONNX, and from `torch.export`."""

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper
from relax_conv_testing import (
    calls,
    compiled,
    converted,
    run,
    stand_ins,  # noqa: F401
    tensor,
)

from relax_passes import Report

pytestmark = [
    pytest.mark.usefixtures("stand_ins"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]

node = helper.make_node


def onnx_model(nodes, constants, channels, opset=13):
    """A model of (n, channels, h, w) from `x` to `y`."""
    inits = [numpy_helper.from_array(np.asarray(v), name) for name, v in constants.items()]
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", channels, "h", "w"])]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)]
    graph = helper.make_graph(nodes, "graph", inputs, outputs, inits)
    opsets = [helper.make_opsetid("", opset)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def session(model):
    return onnxruntime.InferenceSession(model.SerializeToString())


def check_onnx(model, sizes, channels=3):
    """The imported model gives what onnxruntime gives. Returns the calls and a report."""
    from tvm.relax.frontend.onnx import from_onnx

    mod = from_onnx(model)
    report = Report()
    found = calls(converted(mod, report))
    vm, reference = compiled(mod), session(model)
    for n, h, w in sizes:
        x = tensor(n, channels, h, w)
        (want,) = reference.run(None, {"x": x})
        np.testing.assert_allclose(run(vm, x), want, rtol=1e-3, atol=1e-5)
    return found, report


def batch_norm(name, channels):
    """The node from `name` to `name_n`, and its constants."""
    parts = {f"{name}_{part}": tensor(channels + i) for i, part in enumerate("sbmv")}
    constants = {key: value[:channels] for key, value in parts.items()}
    constants[f"{name}_v"] = np.abs(constants[f"{name}_v"]) + 0.5
    return node("BatchNormalization", [name, *constants], [f"{name}_n"]), constants


@pytest.mark.parametrize("opset", [10, 13])
def test_inverted_residual_of_onnx(opset):
    """Clip with attributes, and with inputs that the importer guards against NaN."""
    normed, constants = batch_norm("a", 8)
    last, more = batch_norm("e", 8)
    constants |= more
    constants |= {
        "w0": tensor(8, 3, 3, 3) / 5,
        "b0": tensor(8),
        "w1": tensor(8, 1, 3, 3) / 3,
        "w2": tensor(8, 8, 1, 1) / 3,
        "zero": np.float32(0),
        "six": np.float32(6),
    }
    bounds = {"min": 0.0, "max": 6.0} if opset == 10 else {}
    ends = [] if opset == 10 else ["zero", "six"]
    nodes = [
        node("Conv", ["x", "w0", "b0"], ["a"], strides=[2, 2], pads=[1, 1, 1, 1]),
        normed,
        node("Clip", ["a_n", *ends], ["c"], **bounds),
        node("Conv", ["c", "w1"], ["d"], group=8, pads=[1, 1, 1, 1], kernel_shape=[3, 3]),
        node("Clip", ["d", *ends], ["f"], **bounds),
        node("Conv", ["f", "w2"], ["e"]),
        last,
        node("Add", ["c", "e_n"], ["y"]),
    ]
    model = onnx_model(nodes, constants, 3, opset)
    found, report = check_onnx(model, [(1, 9, 8), (2, 4, 11)])
    assert [entry.detail for entry in report] == [
        "convolution, of planes of channels, fused bias + clip",
        "depthwise, fused clip",
        "convolution, fused bias + residual",
    ]
    assert len(found) == 4 and found.count("permute_dims") == 1


def test_squeeze_and_excite_of_onnx():
    constants = {
        "w0": tensor(8, 3, 3, 3) / 5,
        "w1": tensor(4, 8, 1, 1),
        "w2": tensor(8, 4, 1, 1),
        "b2": tensor(8),
    }
    nodes = [
        node("Conv", ["x", "w0"], ["a"], auto_pad=b"VALID", dilations=[1, 2]),
        node("HardSwish", ["a"], ["h"]),
        node("GlobalAveragePool", ["h"], ["g"]),
        node("Conv", ["g", "w1"], ["s"]),
        node("Relu", ["s"], ["r"]),
        node("Conv", ["r", "w2", "b2"], ["t"]),
        node("HardSigmoid", ["t"], ["gate"], alpha=0.2, beta=0.5),
        node("Mul", ["h", "gate"], ["m"]),
        node("MaxPool", ["m"], ["y"], kernel_shape=[2, 2], strides=[2, 2]),
    ]
    found, report = check_onnx(onnx_model(nodes, constants, 3, 14), [(1, 9, 10), (2, 5, 12)])
    assert [entry.detail for entry in report] == [
        "convolution, fused hardswish",
        "convolution, fused relu",
        "convolution, fused bias + clip",  # the slope of the sigmoid is in its weight
    ]
    assert found.count("permute_dims") == 2


def test_transposed_convolution_of_onnx():
    constants = {"w0": tensor(8, 3, 3, 3) / 5, "w1": tensor(8, 4, 2, 2), "b1": tensor(4)}
    nodes = [
        node("Conv", ["x", "w0"], ["a"], pads=[1, 1, 1, 1]),
        node("Relu", ["a"], ["r"]),
        node("ConvTranspose", ["r", "w1", "b1"], ["t"], strides=[2, 2], kernel_shape=[2, 2]),
        node("Sigmoid", ["t"], ["y"]),
    ]
    found, _ = check_onnx(onnx_model(nodes, constants, 3), [(1, 4, 3)])
    assert found.count("nn.conv2d_transpose") == 1 and found.count("permute_dims") == 1


def test_one_dimension_of_onnx():
    from tvm.relax.frontend.onnx import from_onnx

    constants = {"w0": tensor(8, 3, 5) / 4, "b0": tensor(8), "w1": tensor(8, 1, 3)}
    nodes = [
        node("Conv", ["x", "w0", "b0"], ["a"], pads=[2, 2], strides=[2]),
        node("Relu", ["a"], ["r"]),
        node("Conv", ["r", "w1"], ["y"], pads=[1, 1], group=8),
    ]
    model = onnx_model(nodes, constants, 3)
    shape = model.graph.input[0].type.tensor_type.shape
    del shape.dim[2]
    mod = from_onnx(model)
    vm, reference = compiled(mod), session(model)
    for n, w in ((1, 7), (3, 16), (2, 1)):
        x = tensor(n, 3, w)
        (want,) = reference.run(None, {"x": x})
        np.testing.assert_allclose(run(vm, x), want, rtol=1e-3, atol=1e-5)
    found = calls(converted(mod))
    assert found.count("moonpoly_conv2d_f32") == found.count("moonpoly_depthwise_f32") == 1


# torch.export


def torch_module():
    torch = pytest.importorskip("torch", reason="torch is no requirement of the tests")
    nn = torch.nn

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.stem = nn.Sequential(
                nn.Conv2d(3, 8, 3, 2, 1, bias=False), nn.BatchNorm2d(8), nn.Hardswish()
            )
            self.deep = nn.Sequential(
                nn.Conv2d(8, 8, 5, 1, 2, groups=8), nn.BatchNorm2d(8), nn.ReLU6()
            )
            self.gate = nn.Sequential(
                nn.AdaptiveAvgPool2d(1),
                nn.Conv2d(8, 4, 1),
                nn.ReLU(),
                nn.Conv2d(4, 8, 1),
                nn.Hardsigmoid(),
            )
            self.last = nn.Conv2d(8, 8, 1)
            self.head = nn.Linear(8, 5)

        def forward(self, x):
            y = self.stem(x)
            z = self.deep(y)
            z = nn.functional.silu(y + self.last(z * self.gate(z)))
            return nn.functional.max_pool2d(z, 3, 2, 1).mean((2, 3))

    torch.manual_seed(7)
    module = Block().eval()
    for each in module.modules():
        if isinstance(each, nn.BatchNorm2d):
            each.running_mean.uniform_(-0.5, 0.5)
            each.running_var.uniform_(0.5, 1.5)
    return torch, module


def test_torch_export():
    torch, module = torch_module()
    from tvm.relax.frontend.torch import from_exported_program

    n = torch.export.Dim("n", min=1, max=64)
    h, w = (torch.export.Dim(name, min=9, max=64) for name in "hw")
    example = torch.from_numpy(tensor(2, 3, 12, 10))
    program = torch.export.export(module, (example,), dynamic_shapes=({0: n, 2: h, 3: w},))
    mod = from_exported_program(program, unwrap_unit_return_tuple=True)
    report = Report()
    found = calls(converted(mod, report))
    assert [entry.detail for entry in report] == [
        "convolution, fused bias + hardswish",
        "depthwise, fused bias + clip",
        "convolution, fused bias + relu",
        "convolution, fused bias + hardsigmoid",
        "convolution, fused bias + residual + silu",
    ]
    assert found.count("permute_dims") == 1
    vm = compiled(mod)
    for size in ((2, 12, 10), (1, 9, 15), (3, 64, 9)):
        x = tensor(size[0], 3, *size[1:])
        with torch.no_grad():
            want = module(torch.from_numpy(x)).numpy()
        np.testing.assert_allclose(run(vm, x), want, rtol=1e-3, atol=1e-5)
