"""Run as a process by test_conv_core_memory: convolutions on operands against protected pages.

A read or write outside an operand or of the workspace kills the process. The last line before that
names the case.
"""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
from conv_testing import Case, call, check, reach, with_activation
from core_memory_worker import Guarded, guarded_library
from core_testing import CANARY_NUMBER

from tvm_moonpoly.operators.conv_constants import ConvActivation, ConvSpec, takes_planes

#: (kernel, strides, padding, dilation, groups)
KINDS = [
    ((1, 1), (1, 1), (0, 0, 0, 0), (1, 1), 1),
    ((1, 1), (2, 2), (0, 0, 0, 0), (1, 1), 1),
    ((1, 1), (1, 1), (1, 0, 0, 2), (1, 1), 1),
    ((1, 5), (1, 2), (0, 0, 0, 0), (1, 1), 1),
    ((3, 3), (1, 1), (1, 1, 1, 1), (1, 1), 1),
    ((3, 3), (1, 1), (0, 0, 0, 0), (1, 1), 2),
    ((3, 3), (2, 2), (0, 1, 1, 0), (1, 1), 1),
    ((5, 2), (1, 3), (2, 0, 1, 3), (1, 2), 1),
    ((3, 3), (1, 1), (2, 2, 2, 2), (2, 2), 3),
    ((7, 7), (2, 2), (3, 3, 3, 3), (1, 1), 1),
]
#: channels of a group, and outputs
CHANNELS = [
    (1, 1),
    (3, 8),
    (2, 24),
    (4, 40),
    (4, 13),
    (8, 24),
    (9, 7),
    (16, 16),
    (19, 30),
    (32, 41),
]
#: what the input is larger than the kernel needs
MORE = [(0, 0), (1, 2), (5, 9)]


def main() -> None:
    library, workspace = guarded_library("conv")
    rng = np.random.default_rng(5)
    names = ("x", "weight", "bias", "residual", "out")
    memory = {name: Guarded(400) for name in names}
    activations = list(ConvActivation)
    numbers = itertools.count()
    for kind, (inputs, outputs), more in itertools.product(KINDS, CHANNELS, MORE):
        kernel, strides, padding, dilation, groups = kind
        i = next(numbers)
        spec = ConvSpec(
            kernel, inputs * groups, outputs * groups, strides, padding, dilation, groups
        )
        spec = with_activation(spec, activations[i % len(activations)])
        size = [max(reach(spec, axis) + more[axis], 1) for axis in range(2)]
        dtype = "float16" if i % 4 == 3 else "float32"
        case = Case.random(rng, spec, 1 + i % 2, *size, residual=i % 3 == 0, dtype=dtype)
        packed, bias, _ = case.constants(library.machine.lanes)
        fits = case.residual is None and dtype == "float32"
        fits = fits and takes_planes(spec, library.machine.lanes)
        for side, planes in itertools.product(
            ("begin", "end"), (False, True) if fits else (False,)
        ):
            case = replace(case, spec=replace(spec, planes=planes))
            print(case.spec, case.x.shape, dtype, side, flush=True)
            placed = {"weight": memory["weight"].place(packed, side)}
            placed["bias"] = memory["bias"].place(bias, side)
            placed["x"] = memory["x"].place(case.stored, side)
            if case.residual is not None:
                placed["residual"] = memory["residual"].place(case.residual, side)
            out = memory["out"].place(np.full(case.shape, CANARY_NUMBER, dtype), side)
            check(call(library, case, out, **placed), case)
            np.testing.assert_array_equal(placed["x"], case.stored)
    assert workspace.pieces > 100
    print("all cases ran", flush=True)


if __name__ == "__main__":
    main()
