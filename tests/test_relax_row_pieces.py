"""Rows of several pieces: a loop for each of them, and the same values as with conditions."""

import re

import numpy as np
import pytest
import tvm
from hypothesis import given, settings
from hypothesis import strategies as st
from relax_testing import TARGET, tensor
from tvm import relax, tirx
from tvm.relax import op

from relax_passes import ScheduleMemoryBound, pipeline

M, N, K = (tirx.Var(name, "int64") for name in "mnk")
LOW = np.float32(-1e9)


def padded(x, _y):
    return op.nn.pad(x, [0, 1, 2, 1], "constant", 7.0)


# Of x (m, n) and y (m, k); the same in numpy.
CASES = {
    "two": (lambda x, y: op.concat([x, y], 1), lambda x, y: np.concatenate([x, y], 1)),
    "four": (
        lambda x, y: op.concat([y, x, relax.const(np.float32([[3]])) * y, x], 1),
        lambda x, y: np.concatenate([y, x, 3 * y, x], 1),
    ),
    "pads": (padded, lambda x, y: np.pad(x, [(0, 1), (2, 1)], constant_values=7)),
    "lower": (lambda x, y: op.tril(x, 1), lambda x, y: np.tril(x, 1)),
    "upper": (lambda x, y: op.triu(x, -2), lambda x, y: np.triu(x, -2)),
    "larger": (
        lambda x, y: op.where(op.greater(x, relax.const(np.float32(0))), x, relax.const(LOW)),
        lambda x, y: np.where(x > 0, x, LOW),
    ),
    "rectified": (
        lambda x, y: op.nn.relu(op.concat([x, y], 1)),
        lambda x, y: np.maximum(np.concatenate([x, y], 1), 0),
    ),
}


def module_of(make):
    x = relax.Var("x", relax.TensorType((M, N), "float32"))
    y = relax.Var("y", relax.TensorType((M, K), "float32"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x, y]):
        builder.emit_func_output(builder.emit(builder.normalize(make(x, y))))
    return builder.get()


@pytest.fixture(scope="module", params=CASES)
def case(request):
    make, reference = CASES[request.param]
    executable = tvm.compile(module_of(make), TARGET, relax_pipeline=pipeline(TARGET))
    main = relax.VirtualMachine(executable, tvm.cpu())["main"]
    return main, reference


def check(case, m, n, k):
    main, reference = case
    x, y = tensor(m, n), tensor(m, k) + 1
    result = main(tvm.runtime.tensor(x), tvm.runtime.tensor(y)).numpy()
    np.testing.assert_array_equal(result, reference(x, y).astype("float32"))


@settings(max_examples=40, derandomize=True)
@given(shape=st.tuples(*[st.integers(0, 40)] * 3))
def test_random_shapes(case, shape):
    check(case, *shape)


@pytest.mark.parametrize("shape", [(0, 0, 0), (1, 0, 1), (1, 1, 0), (3, 16, 15), (2, 17, 32)])
def test_shapes_at_the_ends(case, shape):
    check(case, *shape)


@pytest.mark.parametrize("name", CASES)
def test_no_condition_in_a_loop(name):
    with TARGET:
        legal = relax.get_pipeline("zero")(module_of(CASES[name][0]))
    after = ScheduleMemoryBound(TARGET)(legal)
    text = after.script()
    if name == "larger":
        assert "T.vectorized(" in text
    elif name == "pads":
        assert len(re.findall(r"if_then_else\(.*v_?\w*1\b", text)) <= 1  # of rows alone
    else:
        assert "if_then_else" not in text and "T.Select" not in text
