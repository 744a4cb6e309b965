"""From a case to a call: the operator, which plans, or micro-kernels that are told what to do."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from bench.gpu.runner.bundled import BASELINE, Bundle, Functions
from bench.gpu.runner.device import Device
from bench.gpu.runner.operands import Operands, Pool
from bench.gpu.runner.timing import Timer

#: Codes of four axes, in order, and with the last two the other way round; see
#: `tvm_moonpoly.operators.encode_axes`.
_IN_ORDER, _TURNED = 4 << 32 | 0x3210, 4 << 32 | 0x2310


@dataclass(frozen=True)
class Setting:
    """All that the parts work with. ``peer`` is what we are compared with, or None, and then
    ``no_peer`` says why."""

    bundle: Bundle
    functions: Functions
    device: Device
    pool: Pool
    timer: Timer
    reference: Any
    peer: Any = None
    no_peer: str = ""


def bind(setting: Setting, case: Mapping[str, Any], operands: Operands) -> Callable[[], object]:
    """The call of a case on its operands.

    A case with ``launches``, each a kernel and the four numbers of its region (first row and
    column, tiles down and across), launches these; any other calls the operator of its library,
    with the codes of axes where it has heads.
    """
    library = setting.bundle.library(case["library"])
    given = operands.tensors(setting.device)
    tensors = [setting.functions.take(tensor) for tensor in given]

    def found(name: str) -> Callable[..., Any]:
        return setting.functions.find(library["name"], name)

    if "launches" in case:
        steps = [(found(name), tuple(region)) for name, *region in case["launches"]]
    elif case.get("heads"):
        b_axes = _TURNED if library["b_transposed"] else _IN_ORDER
        tensors[2:2] = [_IN_ORDER, b_axes, _IN_ORDER]
        steps = [(found(library["by_axes"]), ())]
    else:
        steps = [(found(library["function"]), ())]

    def launch(_kept: object) -> None:
        for function, region in steps:
            function(*tensors, *region)

    # the tensors read what was given, which is kept as long as the call
    return partial(launch, given)


def bind_baseline(
    setting: Setting, case: Mapping[str, Any], operands: Operands
) -> Callable[[], object]:
    """The call of TVM's own kernel on the same memory, of which it takes the weight as (k, n)."""
    a, b, c = operands.a, operands.b, operands.c
    shapes = ((a, a.rows, a.columns), (b, case["k"], case["n"]), (c, c.rows, c.columns))
    given = [
        setting.device.tensor(each.address, each.dtype, (rows, columns), (columns, 1))
        for each, rows, columns in shapes
    ]
    function = setting.functions.find(case["baseline"], BASELINE)
    tensors = [setting.functions.take(tensor) for tensor in given]

    def launch(_kept: object) -> None:
        function(*tensors)

    return partial(launch, given)


def alone(kernel: Mapping[str, Any], m: int, n: int) -> list[list[Any]]:
    """The launch of one kernel for the whole result."""
    down, across = -(-m // kernel["block_m"]), -(-n // kernel["block_n"])
    return [[kernel["name"], 0, 0, down, across]]
