"""`mp.import_onnx` on tiny graphs: what exporters write, and what TVM's importer does not take."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest
import tvm
from onnx import TensorProto, helper, numpy_helper
from relax_testing import tensor
from tvm import relax

import tvm_moonpoly as mp
from relax_passes.shapes import show_dim
from tvm_moonpoly.onnx_import import OnnxImportError

FLOAT, INT64 = TensorProto.FLOAT, TensorProto.INT64
node = helper.make_node


def ints(*values):
    return np.array(values, np.int64)


def make(
    nodes, inputs, constants=(), *, opset=17, outputs=("y",), dtype=FLOAT, functions=(), typed=()
):
    """A model. `inputs` are shapes, in which a string is a `dim_param` and None has no name."""
    values = [helper.make_tensor_value_info(name, dtype, shape) for name, shape in inputs.items()]
    values += [helper.make_tensor_value_info(*each) for each in typed]
    graph = helper.make_graph(
        nodes,
        "graph",
        values,
        [onnx.ValueInfoProto(name=name) for name in outputs],
        [
            numpy_helper.from_array(np.asarray(array), name)
            for name, array in dict(constants).items()
        ],
    )
    domains = {each.domain for each in functions}
    return helper.make_model(
        graph,
        opset_imports=[helper.make_opsetid(each, 1) for each in domains]
        + [helper.make_opsetid("", opset)],
        ir_version=8,
        functions=list(functions),
    )


def compiled(module):
    return relax.VirtualMachine(tvm.compile(module, "llvm"), tvm.cpu())


def outputs_of(vm, feed):
    found = vm["main"](*(tvm.runtime.tensor(value) for value in feed.values()))
    return [found.numpy()] if isinstance(found, tvm.runtime.Tensor) else [f.numpy() for f in found]


def assert_right(model, *feeds, dims=None, atol=1e-5):
    """Equal to onnxruntime on every feed, through one executable; returns the module."""
    model = onnx.shape_inference.infer_shapes(model)
    before = model.SerializeToString()
    module = mp.import_onnx(model, dims)
    assert model.SerializeToString() == before
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(before, options)
    vm = compiled(module)
    for feed in feeds:
        for found, wanted in zip(outputs_of(vm, feed), session.run(None, feed), strict=True):
            assert found.dtype == wanted.dtype and found.shape == wanted.shape
            np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=atol)
    return module


def dims_of(module):
    """The sizes of the result, as text."""
    return [show_dim(size) for size in module["main"].ret_ty.shape.values]


def refused(model, dims=None):
    with pytest.raises(OnnxImportError) as caught:
        mp.import_onnx(model, dims)
    return str(caught.value)


@pytest.mark.parametrize("name", ["h", "x", "w"])
def test_a_name_of_two_tensors(name):
    """By two nodes, or by a node and an input or a constant."""
    nodes = [
        helper.make_node("Relu", ["x"], ["h"]),
        helper.make_node("Add", ["x", "w"], [name], "again"),
        helper.make_node("Abs", ["h"], ["y"]),
    ]
    model = make(nodes, {"x": ["n"]}, {"w": np.ones(1, np.float32)})
    assert refused(model).endswith(f"Add 'again': the tensor {name!r} is defined twice")


def feeds(*shapes, name="x"):
    return [{name: tensor(*shape)} for shape in shapes]


# Reshape targets computed from shapes


def test_reshape_to_gathered_sizes():
    """As exporters split heads: Shape, Gather, Unsqueeze, Concat, Reshape."""
    nodes = [
        node("Shape", ["x"], ["shape"]),
        node("Gather", ["shape", "zero"], ["n"]),
        node("Gather", ["shape", "one"], ["s"]),
        node("Unsqueeze", ["n", "axes"], ["n1"]),
        node("Unsqueeze", ["s", "axes"], ["s1"]),
        node("Concat", ["n1", "s1", "tail"], ["target"], axis=0),
        node("Reshape", ["x", "target"], ["y"]),
    ]
    constants = {"zero": np.int64(0), "one": np.int64(1), "axes": ints(0), "tail": ints(2, -1)}
    model = make(nodes, {"x": ["n", "s", 8]}, constants)
    module = assert_right(model, *feeds((2, 3, 8), (1, 5, 8)))
    assert dims_of(module) == ["n", "s", "2", "4"]


def test_reshape_to_sliced_and_multiplied_sizes():
    """Vectors of sizes, int32 in between, and a product: -1 is what remains."""
    nodes = [
        node("Shape", ["x"], ["shape"]),
        node("Cast", ["shape"], ["shape32"], to=TensorProto.INT32),
        node("Slice", ["shape32", "from", "to", "axis"], ["hw"]),
        node("ReduceProd", ["hw"], ["area"], keepdims=1),
        node("Cast", ["area"], ["area64"], to=INT64),
        node("Gather", ["shape", "first"], ["n"]),
        node("Concat", ["n", "rest", "area64"], ["target"], axis=0),
        node("Reshape", ["x", "target"], ["y"]),
    ]
    constants = {
        "from": ints(2),
        "to": ints(4),
        "axis": ints(0),
        "first": ints(0),
        "rest": ints(-1),
    }
    model = make(nodes, {"x": ["n", 3, "h", "w"]}, constants)
    module = assert_right(model, *feeds((2, 3, 4, 5), (1, 3, 1, 7)))
    assert dims_of(module) == ["n", "3", "h * w"]


def test_reshape_of_a_convolution_keeps_its_sizes():
    nodes = [
        node("Conv", ["x", "w"], ["c"], strides=[2, 2], pads=[1, 1, 1, 1]),
        node("Reshape", ["c", "target"], ["y"]),
    ]
    model = make(
        nodes, {"x": ["n", 3, "h", "w"]}, {"w": tensor(4, 3, 3, 3), "target": ints(0, 4, -1)}
    )
    module = assert_right(model, *feeds((2, 3, 7, 8), (1, 3, 5, 5)), atol=1e-4)
    assert dims_of(module)[:2] == ["n", "4"] and "h" in dims_of(module)[2]


def test_reshape_to_a_shape_from_data_is_refused():
    model = make([node("Reshape", ["x", "s"], ["y"])], {"x": ["n", 4]}, typed=[("s", INT64, [2])])
    assert "Reshape 'y': its shape, 's', must follow from the model's dimensions" in refused(model)


# Other operators that take shapes


def test_expand_with_where_and_equal():
    """As torch writes expand: -1 keeps a size."""
    nodes = [
        node("Shape", ["x"], ["shape"]),
        node("Gather", ["shape", "first"], ["n"]),
        node("Concat", ["n", "given"], ["wanted"], axis=0),
        node("Equal", ["wanted", "minus"], ["keeps"]),
        node("Where", ["keeps", "ones", "wanted"], ["target"]),
        node("Expand", ["w", "target"], ["e"]),
        node("Add", ["e", "x"], ["y"]),
    ]
    constants = {
        **{"first": ints(0), "given": ints(-1, 4), "minus": ints(-1), "ones": ints(1, 1, 1)},
        "w": tensor(1, 3, 4),
    }
    model = make(nodes, {"x": ["n", 3, 4]}, constants)
    assert dims_of(assert_right(model, *feeds((2, 3, 4), (5, 3, 4)))) == ["n", "3", "4"]


def test_range_of_a_size_keeps_it():
    """Positions: Range(0, seq), cut out of a table by Gather."""
    nodes = [
        node("Shape", ["x"], ["shape"], start=1, end=2),
        node("Squeeze", ["shape", "zero"], ["s"]),
        node("Range", ["start", "s", "step"], ["positions"]),
        node("Gather", ["table", "positions"], ["p"]),
        node("Add", ["x", "p"], ["y"]),
    ]
    constants = {"zero": ints(0), "start": np.int64(0), "step": np.int64(1), "table": tensor(16, 4)}
    model = make(nodes, {"x": ["n", "s", 4]}, constants)
    assert dims_of(assert_right(model, *feeds((2, 5, 4), (1, 16, 4)))) == ["n", "s", "4"]


def test_range_by_steps():
    nodes = [
        node("Size", ["x"], ["n"]),
        node("Range", ["start", "n", "step"], ["r"]),
        node("Cast", ["r"], ["y"], to=FLOAT),
    ]
    model = make(nodes, {"x": ["n"]}, {"start": np.int64(1), "step": np.int64(3)})
    assert_right(model, *feeds((2,), (8,), (1,)))


def test_slice_up_to_a_size():
    """A part of a table of positions has the size it is cut to; a larger one is an error."""
    nodes = [
        node("Shape", ["x"], ["s"], start=1, end=2),
        node("Slice", ["table", "zero", "s", "axis"], ["p"]),
        node("Add", ["x", "p"], ["y"]),
    ]
    constants = {"zero": ints(0), "axis": ints(1), "table": tensor(1, 8, 4)}
    model = make(nodes, {"x": ["n", "s", 4]}, constants)
    module = assert_right(model, *feeds((2, 5, 4), (1, 8, 4)))
    assert dims_of(module) == ["n", "s", "4"]
    with pytest.raises(RuntimeError, match="main: p needs s elements of 8"):
        outputs_of(compiled(module), {"x": tensor(1, 9, 4)})


def test_slices_of_a_dynamic_size():
    nodes, constants = [], {"axis": ints(-1)}
    cases = [(1, 2**40, 1), (-3, -1, 1), (0, 3, 2), (4, 2, 1), (2**40, -(2**40), -1), (-2, 0, -1)]
    for at, case in enumerate(cases):
        names = [f"{kind}{at}" for kind in ("start", "end", "step")]
        constants |= {name: ints(value) for name, value in zip(names, case, strict=True)}
        nodes.append(node("Slice", ["x", *names[:2], "axis", names[2]], [f"y{at}"]))
    outputs = [each.output[0] for each in nodes]
    model = make(nodes, {"x": [2, "w"]}, constants, outputs=outputs)
    assert_right(model, *feeds((2, 7), (2, 2), (2, 3)))


def test_tile_and_constant_of_shape():
    nodes = [
        node("Shape", ["x"], ["n"], start=0, end=1),
        node("Concat", ["n", "one"], ["times"], axis=0),
        node("Tile", ["w", "times"], ["t"]),
        node("Shape", ["x"], ["shape"]),
        node(
            "ConstantOfShape",
            ["shape"],
            ["c"],
            value=numpy_helper.from_array(np.full(1, 2.5, "f4")),
        ),
        node("Add", ["t", "c"], ["y"]),
    ]
    model = make(nodes, {"x": ["n", 4]}, {"one": ints(1), "w": tensor(1, 4)})
    assert dims_of(assert_right(model, *feeds((3, 4), (1, 4)))) == ["n", "4"]


@pytest.mark.parametrize("uneven", [False, True])
def test_split_of_a_dynamic_size(uneven):
    nodes = [node("Split", ["x"] if uneven else ["x", "sizes"], ["y", "z"], axis=1)]
    if uneven:
        nodes[0].attribute.append(helper.make_attribute("num_outputs", 2))
        model = make(nodes, {"x": [2, "s"]}, opset=18, outputs=("y", "z"))
    else:
        nodes = [
            node("Shape", ["x"], ["s"], start=1, end=2),
            node("Sub", ["s", "two"], ["rest"]),
            node("Concat", ["two", "rest"], ["sizes"], axis=0),
            *nodes,
        ]
        model = make(nodes, {"x": [2, "s"]}, {"two": ints(2)}, outputs=("y", "z"))
    assert_right(model, *feeds((2, 7), (2, 4)))


def test_sizes_that_become_data():
    """Divided by the root of a size, and by a size; sizes as an output."""
    nodes = [
        node("Shape", ["x"], ["shape"]),
        node("Gather", ["shape", "last"], ["k"]),
        node("Cast", ["k"], ["kf"], to=FLOAT),
        node("Sqrt", ["kf"], ["root"]),
        node("Div", ["x", "root"], ["a"]),
        node("Gather", ["shape", "first"], ["n"]),
        node("Cast", ["n"], ["nf"], to=FLOAT),
        node("Div", ["a", "nf"], ["y"]),
    ]
    constants = {"last": np.int64(1), "first": np.int64(0)}
    model = make(nodes, {"x": ["n", "k"]}, constants, outputs=("y", "shape", "k"))
    assert_right(model, *feeds((3, 4), (2, 9)))


# Padding


@pytest.mark.parametrize("mode", ["SAME_UPPER", "SAME_LOWER", "VALID"])
def test_auto_pad_of_convolutions(mode):
    """Even and odd windows, strides larger than the window, and an axis that is not divided."""
    nodes, constants = [], {"b": tensor(3)}
    for kernel, stride in [(3, 2), (4, 1), (2, 3), (1, 2)]:
        weight, result = f"w{kernel}", f"y{kernel}"
        constants[weight] = tensor(3, 2, kernel, 3)
        strides = {"auto_pad": mode, "strides": [stride, 1]}
        nodes.append(node("Conv", ["x", weight, "b"], [result], **strides))
    outputs = [each.output[0] for each in nodes]
    model = make(nodes, {"x": ["n", 2, "h", "w"]}, constants, outputs=outputs)
    assert_right(model, *feeds((2, 2, 8, 6), (1, 2, 7, 5), (1, 2, 9, 4)), atol=1e-4)


@pytest.mark.parametrize("mode", ["SAME_UPPER", "SAME_LOWER"])
def test_auto_pad_of_pooling(mode):
    window = {"kernel_shape": [3, 2], "strides": [2, 2], "auto_pad": mode}
    nodes = [
        node("MaxPool", ["x"], ["y"], **window),
        node("AveragePool", ["x"], ["z"], **window),
        node("AveragePool", ["x"], ["u"], count_include_pad=1, **window),
    ]
    model = make(nodes, {"x": [None, 2, None, None]}, outputs=("y", "z", "u"))
    assert_right(model, *feeds((2, 2, 8, 6), (1, 2, 7, 5)))


def test_sums_of_halved_maps_keep_their_sizes():
    """Both halve h, by a pooling and a convolution with other windows."""
    nodes = [
        node("Conv", ["x", "w"], ["a"], auto_pad="SAME_UPPER", strides=[2, 2]),
        node("MaxPool", ["x"], ["b"], kernel_shape=[2, 2], strides=[2, 2], auto_pad="SAME_UPPER"),
        node("Add", ["a", "b"], ["y"]),
    ]
    model = make(nodes, {"x": [1, 2, "h", "h"]}, {"w": tensor(2, 2, 3, 3)})
    module = assert_right(model, *feeds((1, 2, 8, 8), (1, 2, 7, 7)), atol=1e-4)
    assert dims_of(module)[2:] == ["(h + 1) // 2"] * 2


def test_pads_computed_in_the_graph():
    """Up to a multiple of 4, with a value; and a negative pad, which cuts off."""
    nodes = [
        node("Shape", ["x"], ["w"], start=1, end=2),
        node("Add", ["w", "three"], ["more"]),
        node("Div", ["more", "four"], ["blocks"]),
        node("Mul", ["blocks", "four"], ["whole"]),
        node("Sub", ["whole", "w"], ["missing"]),
        node("Concat", ["before", "missing"], ["pads"], axis=0),
        node("Pad", ["x", "pads", "value"], ["y"]),
    ]
    constants = {
        **{"three": ints(3), "four": ints(4), "before": ints(1, -1, 0), "value": np.float32(7)}
    }
    model = make(nodes, {"x": [2, "w"]}, constants)
    assert_right(model, *feeds((2, 5), (2, 8), (2, 3)))


def test_pads_in_another_mode_are_refused_when_symbolic():
    nodes = [
        node("Shape", ["x"], ["w"]),
        node("Concat", ["w", "w"], ["pads"], axis=0),
        node("Pad", ["x", "pads"], ["y"], mode="edge"),
    ]
    assert "Pad 'y': pads of symbolic or negative extent in mode 'edge'" in refused(
        make(nodes, {"x": ["w"]})
    )


def test_transposed_convolution_to_a_given_size():
    transposed = node("ConvTranspose", ["x", "w"], ["y"], strides=[2, 2], output_shape=[10, 9])
    constants = {"w": tensor(2, 3, 3, 3)}
    model = make([transposed], {"x": ["n", 2, 5, 5]}, constants)
    assert_right(model, *feeds((2, 2, 5, 5)), atol=1e-4)
    reason = refused(make([transposed], {"x": [1, 2, "h", "w"]}, constants))
    assert "output_shape needs an operand and weights of fixed size" in reason


# Resize


def test_resize_to_the_size_of_another_map():
    """Scales are quotients of sizes (opset 10's habit) or sizes are given."""
    nodes = [
        node("Shape", ["x"], ["xs"]),
        node("Slice", ["xs", "zero", "two", "zero"], ["nc"]),
        node("Shape", ["z"], ["zs"]),
        node("Slice", ["zs", "two", "four", "zero"], ["hw"]),
        node("Concat", ["nc", "hw"], ["sizes"], axis=0),
        node("Resize", ["x", "", "", "sizes"], ["y"], mode="linear"),
        node("Cast", ["sizes"], ["above"], to=FLOAT),
        node("Cast", ["xs"], ["below"], to=FLOAT),
        node("Div", ["above", "below"], ["scales"]),
        node("Resize", ["x", "", "scales"], ["u"], mode="nearest", nearest_mode="floor",
             coordinate_transformation_mode="asymmetric"),
    ]  # fmt: skip
    constants = {"zero": ints(0), "two": ints(2), "four": ints(4)}
    model = make(nodes, {"x": ["n", 2, "h", "w"], "z": ["n", 3, "H", "W"]}, constants,
                 outputs=("y", "u"))  # fmt: skip
    assert_right(
        model,
        {"x": tensor(1, 2, 3, 4), "z": tensor(1, 3, 6, 7)},
        {"x": tensor(2, 2, 5, 4), "z": tensor(2, 3, 5, 9)},
    )


def test_resize_by_scales_of_sizes():
    """torch's interpolate: sizes are floor(float(h) * 2)."""
    nodes = [
        node("Shape", ["x"], ["shape"]),
        node("Slice", ["shape", "two", "four"], ["hw"]),
        node("Cast", ["hw"], ["hwf"], to=FLOAT),
        node("Mul", ["hwf", "factor"], ["larger"]),
        node("Floor", ["larger"], ["floored"]),
        node("Cast", ["floored"], ["new"], to=INT64),
        node("Slice", ["shape", "zero", "two"], ["nc"]),
        node("Concat", ["nc", "new"], ["sizes"], axis=0),
        node("Resize", ["x", "", "", "sizes"], ["y"], mode="nearest",
             coordinate_transformation_mode="asymmetric", nearest_mode="floor"),
    ]  # fmt: skip
    constants = {
        **{"zero": ints(0), "two": ints(2), "four": ints(4)},
        "factor": np.array([2, 1.6666666], np.float32),
    }
    model = make(nodes, {"x": ["n", 2, "h", "w"]}, constants)
    assert_right(model, *feeds((1, 2, 3, 6), (2, 2, 4, 3)))


@pytest.mark.parametrize("opset", [9, 10, 11, 17])
def test_resize_by_constant_scales(opset):
    scales = np.array([1, 1, 2, 3], np.float32)
    kind = "Upsample" if opset < 10 else "Resize"
    names = ["x", "scales"] if opset < 11 else ["x", "roi", "scales"]
    constants = {"scales": scales, **({} if opset < 11 else {"roi": np.empty(0, np.float32)})}
    model = make([node(kind, names, ["y"], mode="nearest")], {"x": ["n", 2, "h", "w"]}, constants,
                 opset=opset)  # fmt: skip
    assert dims_of(assert_right(model, *feeds((1, 2, 3, 4)))) == ["n", "2", "h * 2", "w * 3"]


def test_resize_by_scales_that_lead_to_no_whole_sizes():
    """The scale counts, not the quotient of the sizes that it leads to."""
    nodes = []
    for coordinates in ("half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel"):
        for mode, rounding in [("linear", "floor"), ("nearest", "round_prefer_floor"),
                               ("nearest", "round_prefer_ceil"), ("nearest", "ceil")]:  # fmt: skip
            result = f"{mode}_{rounding}_{coordinates}"
            attributes = {"mode": mode, "coordinate_transformation_mode": coordinates}
            attributes["nearest_mode"] = rounding
            nodes.append(node("Resize", ["x", "", "scales"], [result], **attributes))
    outputs = [each.output[0] for each in nodes]
    constants = {"scales": np.array([1, 1, 0.6, 2.5], np.float32)}
    model = make(nodes, {"x": [1, 1, "h", "w"]}, constants, outputs=outputs)
    assert_right(model, *feeds((1, 1, 4, 5), (1, 1, 7, 2)))
    refusing = [node("Resize", ["x", "", "scales"], ["y"], mode="cubic")]
    reason = refused(make(refusing, {"x": [1, 1, "h", "w"]}, constants))
    assert "Resize 'y': mode 'cubic' with 'half_pixel' and these sizes" in reason


def test_resize_to_sizes_with_other_coordinates():
    nodes = [
        node("Shape", ["z"], ["sizes"]),
        *(
            node("Resize", ["x", "", "", "sizes"], [each], mode="linear",
                 coordinate_transformation_mode=each)
            for each in ("align_corners", "asymmetric", "pytorch_half_pixel")
        ),
    ]  # fmt: skip
    outputs = [each.output[0] for each in nodes[1:]]
    model = make(nodes, {"x": [1, 2, "h", "w"], "z": [1, 2, "H", "W"]}, outputs=outputs)
    assert_right(
        model,
        {"x": tensor(1, 2, 3, 4), "z": tensor(1, 2, 7, 9)},
        {"x": tensor(1, 2, 5, 1), "z": tensor(1, 2, 1, 3)},
    )


# Operands whose sizes agree only at the call


def test_maps_that_were_halved_and_doubled_are_taken_to_fit():
    nodes = [
        node("MaxPool", ["x"], ["half"], kernel_shape=[2, 2], strides=[2, 2]),
        node("Resize", ["half", "", "scales"], ["whole"], mode="nearest",
             coordinate_transformation_mode="asymmetric"),
        node("Add", ["whole", "x"], ["sum"]),
        node("Concat", ["whole", "sum"], ["y"], axis=1),
    ]  # fmt: skip
    constants = {"scales": np.array([1, 1, 2, 2], np.float32)}
    model = make(nodes, {"x": [1, 2, "h", "w"]}, constants)
    module = assert_right(model, *feeds((1, 2, 4, 6), (1, 2, 2, 2)))
    assert dims_of(module) == ["1", "4", "h // 2 * 2", "w // 2 * 2"]
    with pytest.raises(RuntimeError, match="main: sum takes operands whose sizes agree"):
        outputs_of(compiled(module), {"x": tensor(1, 2, 5, 6)})


def test_batches_of_a_product_are_taken_to_fit():
    model = make([node("MatMul", ["x", "z"], ["y"])], {"x": ["a", 2, 3], "z": ["b", 3, 4]})
    module = assert_right(model, {"x": tensor(5, 2, 3), "z": tensor(5, 3, 4)})
    assert len(dims_of(module)) == 3
    with pytest.raises(RuntimeError, match="main: y takes operands whose sizes agree"):
        outputs_of(compiled(module), {"x": tensor(2, 2, 3), "z": tensor(3, 3, 4)})


def test_sizes_that_depend_on_data_are_new_variables():
    nodes = [
        node("NonZero", ["x"], ["at"]),
        node("Transpose", ["at"], ["rows"], perm=[1, 0]),
        node("Cast", ["rows"], ["y"], to=FLOAT),
    ]
    model = make(nodes, {"x": ["n", 3]})
    x = np.array([[0, 1, 0], [2, 0, 3]], np.float32)
    assert_right(model, {"x": x})


# Clip, Dropout, Identity, If


def test_clip_and_dropout_and_identity():
    nodes = [
        node("Dropout", ["x"], ["d", "mask"]),
        node("Identity", ["d"], ["i"]),
        node("Clip", ["i", "low", "high"], ["c"]),
        node("Clip", ["c", "low"], ["y"]),
    ]
    constants = {"low": np.float32(-0.5), "high": np.float32(0.25)}
    model = make(nodes, {"x": ["n", 3]}, constants, outputs=("y", "mask"))
    module = assert_right(model, *feeds((4, 3)))
    assert "call_tir" not in module.script()


@pytest.mark.parametrize("operator", ["Max", "Min"])
@pytest.mark.parametrize("count", [1, 2, 3])
def test_extremes_are_operators_of_two_that_pass_nan_on(operator, count):
    names = ["a", "b", "c"][:count]

    def feed(n):
        rng = np.random.default_rng(n)
        values = {name: rng.standard_normal((n, 4)).astype(np.float32) for name in names}
        for at, value in enumerate(values.values()):
            value.flat[at::5] = np.nan
        return values

    model = make([node(operator, names, ["y"])], {name: ["n", 4] for name in names})
    module = mp.import_onnx(model)
    assert str(module).count(f"R.{operator.lower()}imum") == count - 1
    target = mp.detect_target(cores=1)
    executable = tvm.compile(module, target, relax_pipeline=mp.pipeline(target))
    vm = relax.VirtualMachine(executable, tvm.cpu())
    session = onnxruntime.InferenceSession(model.SerializeToString())
    for n in (0, 1, 7):
        found, wanted = outputs_of(vm, feed(n)), session.run(None, feed(n))
        np.testing.assert_array_equal(found[0], wanted[0])


def test_powers_of_another_type():
    nodes = [
        node("Pow", ["x", "two"], ["p"]),
        node("Shape", ["x"], ["shape"]),
        node("Gather", ["shape", "zero"], ["n"]),
        node("Pow", ["n", "two"], ["square"]),
        node("Cast", ["square"], ["s"], to=FLOAT),
        node("Add", ["p", "s"], ["y"]),
    ]
    model = make(nodes, {"x": ["n", 3]}, {"two": np.int64(2), "zero": np.int64(0)})
    assert_right(model, *feeds((4, 3), (1, 3)))


def test_reshape_of_nothing():
    model = make(
        [node("Reshape", ["x", "target"], ["y"], allowzero=1)],
        {"x": ["n", 4]},
        {"target": ints(2, 0)},
    )
    assert_right(model, *feeds((0, 4)))


def test_dropout_in_training_is_refused():
    nodes = [node("Dropout", ["x", "ratio", "training"], ["y"])]
    constants = {"ratio": np.float32(0.5), "training": np.bool_(True)}
    assert "Dropout 'y': it may be in training mode" in refused(make(nodes, {"x": [2]}, constants))


def test_a_branch_that_follows_from_sizes_is_taken():
    """torch writes squeeze with an If on the size."""

    def branch(name, nodes):
        return helper.make_graph(nodes, name, [], [onnx.ValueInfoProto(name=name)])

    then = branch("squeezed", [node("Squeeze", ["x", "axis"], ["squeezed"])])
    otherwise = branch("same", [node("Identity", ["x"], ["same"])])
    nodes = [
        node("Shape", ["x"], ["shape"]),
        node("Gather", ["shape", "one"], ["size"]),
        node("Equal", ["size", "one"], ["is_one"]),
        node("If", ["is_one"], ["z"], then_branch=then, else_branch=otherwise),
        node("Relu", ["z"], ["y"]),
    ]
    model = make(nodes, {"x": ["n", 1, 3]}, {"one": np.int64(1), "axis": ints(1)})
    module = mp.import_onnx(model)
    x = tensor(4, 1, 3)
    np.testing.assert_array_equal(outputs_of(compiled(module), {"x": x})[0], np.maximum(x[:, 0], 0))
    assert "R.dataflow" in module.script()


# The form of the model


def test_constants_of_every_kind():
    nodes = [
        node("Constant", [], ["a"], value_float=2.0),
        node("Constant", [], ["b"], value_floats=[1.0, 2.0, 3.0]),
        node("Constant", [], ["c"], value=numpy_helper.from_array(np.float32(0.5))),
        node("Constant", [], ["axes"], value_ints=[0]),
        node("Constant", [], ["at"], value_int=0),
        node("Mul", ["x", "a"], ["p"]),
        node("Add", ["p", "b"], ["q"]),
        node("Sub", ["q", "c"], ["r"]),
        node("Unsqueeze", ["r", "axes"], ["u"]),
        node("Gather", ["u", "at"], ["y"]),
    ]
    assert_right(make(nodes, {"x": ["n", 3]}), *feeds((2, 3)))


def test_what_is_constant_is_computed():
    """Weights that pass through Cast, Transpose and Reshape are constants all the same."""
    nodes = [
        node("Cast", ["w"], ["wf"], to=FLOAT),
        node("Transpose", ["wf"], ["wt"], perm=[1, 0]),
        node("Identity", ["wt"], ["wi"]),
        node("MatMul", ["x", "wi"], ["y"]),
    ]
    model = make(nodes, {"x": ["n", 64]}, {"w": tensor(48, 64).astype(np.float16)})
    module = assert_right(model, *feeds((2, 64)), atol=1e-4)
    assert "permute_dims" not in module.script() and "astype" not in module.script()


def test_weights_that_are_listed_as_inputs():
    weights = {"w": tensor(40, 40), "b": tensor(40)}
    nodes = [node("MatMul", ["x", "w"], ["p"]), node("Add", ["p", "b"], ["y"])]
    model = make(nodes, {"x": ["n", 40], "w": [40, 40], "b": [40]}, weights)
    module = assert_right(model, *feeds((3, 40)), atol=1e-4)
    assert len(module["main"].params) == 1


def test_functions_of_the_model_are_inlined():
    scaled = helper.make_function(
        "mine", "Scaled", ["a"], ["b"],
        [node("Constant", [], ["two"], value_float=2.0), node("Mul", ["a", "two"], ["b"])],
        [helper.make_opsetid("", 17)],
    )  # fmt: skip
    nodes = [node("Scaled", ["x"], ["z"], domain="mine"), node("Relu", ["z"], ["y"])]
    assert_right(make(nodes, {"x": ["n"]}, functions=[scaled]), *feeds((5,)))


def test_operators_that_onnx_defines_by_others():
    nodes = [node("Celu", ["x"], ["z"], alpha=0.5), node("LpNormalization", ["z"], ["y"], axis=1)]
    assert_right(make(nodes[:1], {"x": ["n", 3]}, outputs=("z",)), *feeds((2, 3)))


@pytest.mark.parametrize("opset", [7, 9])
def test_operators_of_old_opsets(opset):
    """Slice and Pad with attributes, Dropout and Clip as they were."""
    nodes = [
        node("Slice", ["x"], ["s"], starts=[1], ends=[3], axes=[1]),
        node("Pad", ["s"], ["p"], pads=[0, 1, 0, 2], value=1.5),
        node("Clip", ["p"], ["c"], min=-1.0, max=2.0),
        node("Dropout", ["c"], ["y"]),
    ]
    assert_right(make(nodes, {"x": ["n", 4]}, opset=opset), *feeds((2, 4)))


def test_external_data_beside_the_file(tmp_path):
    weights = {"w": tensor(40, 40), "shape": ints(-1, 4, 10)}
    nodes = [node("MatMul", ["x", "w"], ["p"]), node("Reshape", ["p", "shape"], ["y"])]
    model = make(nodes, {"x": ["n", 40]}, weights)
    path = tmp_path / "model.onnx"
    onnx.save(model, path, save_as_external_data=True, location="data", size_threshold=0)
    x = tensor(3, 40)
    found = outputs_of(compiled(mp.import_onnx(path)), {"x": x})[0]
    np.testing.assert_allclose(found, (x @ weights["w"]).reshape(3, 4, 10), rtol=1e-4, atol=1e-4)
    (tmp_path / "data").unlink()
    assert "the data of the tensor 'shape' cannot be read" in refused(path)


# Dimensions


def two(*shapes):
    """Two inputs and outputs."""
    nodes = [node("Relu", ["x"], ["y"]), node("Relu", ["z"], ["u"])]
    return make(nodes, dict(zip("xz", shapes, strict=True)), outputs=("y", "u"))


def shapes_of(module):
    return [[show_dim(size) for size in param.ty.shape.values] for param in module["main"].params]


def test_dimensions_without_a_name_get_one_each():
    model = two([None, "?", 3], ["?", None, 3])
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_value = -1
    module = mp.import_onnx(model)
    assert shapes_of(module) == [["x_0", "x_1", "3"], ["z_0", "z_1", "3"]]


def test_dimensions_are_fixed_renamed_and_tied():
    model = two(["n", None], ["m", None])
    assert shapes_of(mp.import_onnx(model, {"n": 4})) == [["4", "x_1"], ["m", "z_1"]]
    assert shapes_of(mp.import_onnx(model, {"n": "batch"}))[0] == ["batch", "x_1"]
    tied = {"n": "b", "m": "b", "x:1": "w", "z_1": "w"}
    module = mp.import_onnx(model, tied)
    assert shapes_of(module) == [["b", "w"], ["b", "w"]]
    # one of two dimensions of one name
    same = two(["n", "n"], ["n", "n"])
    assert shapes_of(mp.import_onnx(same, {"x:1": 7, "z:1": 7})) == [["n", "7"], ["n", "7"]]


def test_names_that_tvm_takes_for_arithmetic():
    """A name with a hyphen is one name; a sum of names that there are is a sum."""
    module = mp.import_onnx(two(["dynamic-batch", "s"], ["dynamic-batch", "s + 1"]))
    assert shapes_of(module) == [["dynamic_batch", "s"], ["dynamic_batch", "s + 1"]]
    assert shapes_of(mp.import_onnx(two(["a b", 1], ["2*n", 1]))) == [
        ["a_b", "1"],
        ["dim_2_n", "1"],
    ]
    fixed = mp.import_onnx(two(["n", "s"], ["n", "1 + s * 2"]), {"s": 3})
    assert shapes_of(fixed) == [["n", "3"], ["n", "7"]]


def test_a_range_is_checked_at_the_call():
    model = make([node("Relu", ["x"], ["y"])], {"x": ["n", "w"]})
    vm = compiled(mp.import_onnx(model, {"n": (1, 4), "x:1": (2, 2)}))
    for n in (1, 4):
        assert outputs_of(vm, {"x": tensor(n, 2)})[0].shape == (n, 2)
    for n in (0, 5):
        with pytest.raises(RuntimeError, match="the dimension n must be between 1 and 4"):
            outputs_of(vm, {"x": tensor(n, 2)})


def test_an_input_of_unknown_rank():
    model = make([node("Relu", ["x"], ["y"])], {"x": None})
    assert "the rank of the input 'x' is not known" in refused(model)
    module = mp.import_onnx(model, {"x:0": "n", "x:1": 3})
    assert shapes_of(module) == [["n", "3"]]


@pytest.mark.parametrize(
    "dims,reason",
    [
        (
            {"bacth": 2},
            "no input has a dimension 'bacth'; dynamic are: n, x_1, or as INPUT:AXIS, such as x:0",
        ),
        ({"x:2": 4}, "'x:2' has the fixed size 3, not 4"),
        ({"n": -1}, "the size of 'n' must be at least 1, got -1"),
        ({"n": 0}, "the size of 'n' must be at least 1, got 0; leave it dynamic for calls with 0"),
        ({"n": "a b"}, "'a b', the name for 'n', must be an identifier"),
        ({"n": (3, 1)}, "the range of 'n' must rise from 0 or more, got (3, 1)"),
        ({"n": 1.5}, "'n' must be a size, a name or a range, not 1.5"),
        ({"n": True}, "'n' must be a size, a name or a range, not True"),
    ],
)
def test_dims_that_do_not_fit(dims, reason):
    model = make([node("Relu", ["x"], ["y"])], {"x": ["n", None, 3]})
    with pytest.raises(ValueError) as caught:
        mp.import_onnx(model, dims)
    assert str(caught.value) == f"dims: {reason}"


def test_a_dynamic_size_may_be_0_in_a_reshape():
    model = make(
        [node("Reshape", ["x", "target"], ["y"])], {"x": ["n", 6]}, {"target": ints(-1, 2, 3)}
    )
    assert_right(model, *feeds((2, 6), (1, 6)))
    (found,) = outputs_of(compiled(mp.import_onnx(model)), {"x": tensor(0, 6)})
    assert found.shape == (0, 2, 3)


# What cannot be imported


def test_all_operators_that_are_missing_are_named_at_once():
    nodes = [
        node("Mine", ["x"], ["a"], domain="my.domain", name="first"),
        node("Det", ["a"], ["y"]),
    ]
    model = make(nodes, {"x": ["n", "n"]})
    with pytest.raises(OnnxImportError) as caught:
        mp.import_onnx(model)
    assert [str(problem) for problem in caught.value.problems] == [
        "my.domain::Mine 'first': TVM's importer has no such operator",
        "Det 'y': TVM's importer has no such operator",
    ]


def test_a_node_that_fails_is_named(capfd):
    nodes = [node("MatMul", ["x", "z"], ["y"], name="product")]
    text = refused(make(nodes, {"x": ["n", 3], "z": [4, 5]}))
    assert text.startswith("the model cannot be imported: MatMul 'product': ")
    text = refused(make([node("Relu", ["nothing"], ["y"])], {"x": ["n"]}))
    assert "Relu 'y': 'nothing' is not computed before it" in text
    assert capfd.readouterr().out == ""


def test_what_is_no_model(tmp_path):
    path = tmp_path / "model.onnx"
    path.write_bytes(b"not a model\n")
    assert refused(path).startswith(f"{path} cannot be imported: this is no ONNX model")
    with pytest.raises(FileNotFoundError):
        mp.import_onnx(tmp_path / "missing.onnx")


# Sizes that follow from those of weights

_W = {
    name: tensor(*shape)
    for name, shape in {
        **{"oihw": (8, 4, 3, 3), "groups": (8, 2, 3, 3), "oiw": (8, 4, 3), "iohw": (4, 8, 3, 3)},
        **{"four": (4,), "slope": (4, 1, 1), "square": (4, 4), "tall": (8, 4), "one": (4, 1)},
    }.items()
}
FITTING = {
    "Conv": (("oihw",), {"pads": [1] * 4}, ["n", "c", "h", "w"]),
    "Conv, groups": (("groups",), {"group": 2}, ["n", "c", "h", "w"]),
    "Conv, auto_pad": (("oihw",), {"auto_pad": "SAME_UPPER"}, ["n", "c", "h", "w"]),
    "Conv, 1d": (("oiw",), {}, ["n", "c", "h"]),
    "ConvTranspose": (("iohw",), {}, ["n", "c", "h", "w"]),
    "ConvTranspose, groups": (("iohw",), {"group": 2}, ["n", "c", "h", "w"]),
    "MatMul": (("square",), {}, ["b", "n", "c"]),
    "Gemm": (("square", "four"), {}, ["n", "c"]),
    "Gemm, transposed": (("tall",), {"transB": 1, "transA": 1}, ["c", "n"]),
    "BatchNormalization": (("four", "four", "four", "ones"), {}, ["n", "c", "h", "w"]),
    "InstanceNormalization": (("four", "four"), {}, ["n", "c", "h"]),
    "LayerNormalization": (("four", "four"), {}, ["n", "c"]),
    "PRelu": (("slope",), {}, ["n", "c", "h", "w"]),
}


def fitting(case, shape=None):
    names, attributes, wanted = FITTING[case]
    weights = {**_W, "ones": np.ones(4, np.float32)}
    nodes = [node(case.split(",")[0], ["x", *names], ["y"], **attributes)]
    constants = {name: weights[name] for name in names}
    return make(nodes, {"x": shape or wanted}, constants), shape or wanted


@pytest.mark.parametrize("case", FITTING)
def test_a_size_that_follows_from_a_weight_is_fixed(case):
    model, shape = fitting(case)
    sizes = {"n": 2, "b": 3, "c": 4, "h": 5, "w": 6}
    module = assert_right(model, *feeds([sizes[name] for name in shape], [
        1 if name == "n" else sizes[name] for name in shape]))  # fmt: skip
    params = [show_dim(size) for size in module["main"].params[0].ty.shape.values]
    assert params == ["4" if name == "c" else name for name in shape]
    vm = compiled(module)
    for c in (0, 1, 3, 6):
        x = tensor(*(c if name == "c" else sizes[name] for name in shape))
        with pytest.raises(RuntimeError, match=rf"\({c} vs\. 4\) : .*param=x"):
            vm["main"](tvm.runtime.tensor(x))
    # a number that is wrong is an error of the import, as is a promise
    wrong = fitting(case, [3 if name == "c" else name for name in shape])[0]
    assert "has the size 3 where it must be 4, " in refused(wrong)
    promised = refused(model, {"c": (5, 8)})
    assert f"{case.split(',')[0]} 'y': 'c' must be 4, " in promised and "which is not" in promised


def test_a_fixed_size_is_that_of_all_inputs(capfd):
    nodes = [
        node("Conv", ["x", "oihw"], ["a"]),
        node("MatMul", ["z", "square"], ["b"]),
        node("ReduceSum", ["a"], ["a0"], keepdims=0),
        node("Add", ["a0", "b"], ["y"]),
    ]
    constants = {name: _W[name] for name in ("oihw", "square")}
    model = make(nodes, {"x": ["n", "c", "h", "w"], "z": ["n", "c"]}, constants)
    module = assert_right(model, {"x": tensor(2, 4, 5, 6), "z": tensor(2, 4)})
    assert [show_dim(p.ty.shape.values[1]) for p in module["main"].params] == ["4", "4"]
    assert "BlockBuilder" not in capfd.readouterr().err


def test_a_sum_that_follows_from_a_weight_is_checked():
    nodes = [node("Concat", ["x", "z"], ["both"], axis=1), node("Conv", ["both", "oihw"], ["y"])]
    model = make(nodes, {"x": ["n", "a", 5, 6], "z": ["n", "b", 5, 6]}, {"oihw": _W["oihw"]})
    right = {"x": tensor(2, 1, 5, 6), "z": tensor(2, 3, 5, 6)}
    vm = compiled(assert_right(model, right))
    with pytest.raises(RuntimeError, match=r"\(6 vs\. 4\) : main: y: a size of both must be the"):
        outputs_of(vm, {"x": right["z"], "z": right["z"]})
