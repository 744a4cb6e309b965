"""What the checks at the call say: one sentence, without TVM's around it."""

import numpy as np
import pytest
import tvm
from onnx import TensorProto, helper, numpy_helper
from relax_testing import TARGET, module, tensor
from tvm import relax
from tvm.ir import StringImm
from tvm.script import relax as R
from tvm.script import tirx as T

import tvm_moonpoly as mp
from relax_passes.own_errors import sentence
from relax_passes.run_time_checks import assert_equal
from tvm_moonpoly.operators import library
from tvm_moonpoly.operators.check import CHECK


def called(mod, *shapes, **options):
    executable = tvm.compile(mod, TARGET, relax_pipeline=mp.pipeline(TARGET, **options))
    main = relax.VirtualMachine(executable, tvm.cpu())["main"]
    with pytest.raises((RuntimeError, ValueError)) as caught:
        main(*(tvm.runtime.tensor(tensor(*shape)) for shape in shapes))
    return str(caught.value)


@R.function
def reshaped(x: R.Tensor(("n", 8), "float32")):
    n = T.int64()
    with R.dataflow():
        a = R.reshape(x, (n // 4, 32))
        b = R.exp(a)
        R.output(b)
    return b


def network(channels):
    """A convolution of 3x3 kernels over 3 channels."""
    weight = numpy_helper.from_array(np.ones((4, 3, 3, 3), np.float32), "w")
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", channels, "h", "w"])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    nodes = [helper.make_node("Conv", ["x", "w"], ["y"], kernel_shape=[3, 3])]
    graph = helper.make_graph(nodes, "g", [x], [y], [weight])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])


def test_a_promise():
    assert called(module(reshaped), (12, 8), dims={"n": mp.Range(1, 64, 8)}) == (
        "main: the dimension n must be between 1 and 64 and a multiple of 8 (axis 0 of the input "
        "x); 12 instead of 8"
    )


def test_a_reshape():
    assert called(module(reshaped), (9, 8)) == (
        "main: reshape (n, 8) -> (n // 4, 32) changes the number of elements: n // 4 * 32 instead "
        "of n * 8; 64 instead of 72"
    )


@pytest.mark.parametrize("channels", ["c", 3])
def test_an_input_of_a_model(channels):
    mod = mp.import_onnx(network(channels))
    said = called(mod, (1, 4, 8, 8))
    assert "main: the input x must be float32 of the shape (n, 3, h, w);" in said
    assert "4 vs. 3" in said and "ErrorContext" not in said
    said = called(mod, (1, 3, 8))
    assert "main: the input x must be float32 of the shape (n, 3, h, w);" in said
    assert called(mod, (1, 3, 2, 8)) == (
        "main: conv2d of x (n, h, w, 3): its height with padding is less than that of the kernel: "
        "h instead of 3; 2 instead of 3"
    )


def test_a_target_without_a_library_keeps_the_text_within_that_of_tvm():
    plain = tvm.target.Target({"kind": "llvm", "mcpu": "x86-64"})
    passes = mp.pipeline(plain, dims={"n": (1, 4)})
    executable = tvm.compile(module(reshaped), plain, relax_pipeline=passes)
    with pytest.raises(RuntimeError, match=r"9 vs. 4.*main: the dimension n must be between 1 and"):
        relax.VirtualMachine(executable, tvm.cpu())["main"](tvm.runtime.tensor(tensor(9, 8)))


def test_a_check_of_a_number():
    builder = relax.BlockBuilder()
    n = tvm.tirx.Var("n", "int64")
    x = relax.Var("x", relax.TensorType([n, 8], "float32"))
    with builder.function("main", [x]):
        check = builder.emit(assert_equal(tvm.tirx.const(3, "int64"), n * 2, "three;"))
        builder.match_cast(check, relax.ObjectType())
        builder.emit_func_output(builder.emit(relax.op.exp(x)))
    assert called(builder.get(), (4, 8)) == "three; 3 instead of 8"


@pytest.mark.parametrize("numbers", [(3, 4), (-(1 << 63), (1 << 63) - 1), (0, -1)])
def test_the_check_of_the_library(numbers):
    check = library(TARGET).module[CHECK]
    text = tvm.runtime.tensor(np.frombuffer("größer als #;".encode(), np.uint8))
    for number in numbers:
        check(text, number, number)
    with pytest.raises(RuntimeError) as caught:
        check(text, *numbers)
    assert str(caught.value) == f"größer als #; {numbers[0]} instead of {numbers[1]}"


def test_other_texts_stay():
    for text in ("main: x;", "ErrorContext(fn=main, loc=return, annotation=R.Tensor((n, 16), ...)"):
        assert sentence(text) == StringImm(text).value
