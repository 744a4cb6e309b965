"""The parts of the operator library: which packed functions are compiled together.

Each part is a module of its own that calls nothing of the others: what several need (errors,
micro-kernels, parts of the planner) is in each of them, as private functions. An executable takes
in those that it calls. A part may have all functions of another one and more, and then stands for
both; other parts have none in common. To add one: a function that emits it, and a line in `PARTS`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from tvm_moonpoly.costmodel.tables import CostTable
from tvm_moonpoly.emit import INT, Expr, Functions, Pointer, loop
from tvm_moonpoly.machine import Machine
from tvm_moonpoly.microkernels.records import Form
from tvm_moonpoly.operators import (
    activation,
    attention,
    attention_constants,
    bounded_activation,
    chaining,
    check,
    conv,
    conv_constants,
    depthwise,
    errors,
    gemm_region,
    gemm_tiles,
    linear,
    matmul,
    packing,
    plain,
    product,
    sharing,
    stream,
    tensors,
    verify,
)
from tvm_moonpoly.operators.tensors import Tensor
from tvm_moonpoly.planner import native as native_planner
from tvm_moonpoly.planner import native_conv

#: ``moonpoly_plan_rows(n, k, batch, b_mode, out)``: out[m] is the plan for m rows, m = 1, 2, ...
PLAN_ROWS = "moonpoly_plan_rows"

PLANS, GEMM, ATTENTION, PLAIN = "plans", "gemm", "attention", "plain"
CONV, DEPTHWISE, VERIFY, CHECKS = "conv", "depthwise", "verify", "checks"


@dataclass(frozen=True)
class Part:
    """The packed functions ``entries``, which ``emit`` defines with all that they call."""

    name: str
    entries: tuple[str, ...]
    emit: Callable[[Functions, Machine, CostTable], None]


def functions(machine: Machine, table: CostTable, part: str = GEMM) -> Functions:
    """All functions of a part, not yet compiled."""
    defined = Functions(part)
    errors.emit(defined)
    tensors.emit(defined)
    _BY_NAME[part].emit(defined, machine, table)
    return defined


def parts_of(names: Iterable[str]) -> list[str]:
    """The fewest parts with the packed functions ``names``, in the order of `PARTS`; of a function
    that is not of the library, none."""
    called = set(names)
    given = [called.intersection(part.entries) for part in PARTS]

    def spared(i: int) -> bool:
        """Whether another part gives more, or an earlier one the same."""
        return any(given[i] < more or (given[i] == more and j < i) for j, more in enumerate(given))

    return [part.name for i, part in enumerate(PARTS) if given[i] and not spared(i)]


def _emit_plans(defined: Functions, machine: Machine, table: CostTable) -> None:
    """What compiling a model calls: so little that it is quickly made ready to run."""
    native_planner.emit(defined, machine, table)
    _emit_plan_rows(defined)


def _emit_plan_rows(defined: Functions) -> None:
    @defined.public(PLAN_ROWS, n=INT, k=INT, batch=INT, b_mode=INT, out="handle")
    def _(n: Expr, k: Expr, batch: Expr, b_mode: Expr, out: Any) -> None:
        plans = Tensor(out, "out", INT)
        rows: Pointer = plans.data
        with loop(plans.shape[0] - 1) as i:
            defined["moonpoly_plan"](i + 1, n, k, batch, b_mode, rows.at(i + 1))


def _emit_gemm(defined: Functions, machine: Machine, table: CostTable) -> None:
    """float32 by the micro-kernels, and the packing of weights."""
    records = list(table.tasks)
    product.emit(defined)
    activation.emit(defined, machine.lanes)
    chaining.emit(defined, machine.lanes)
    packing.emit(defined, sorted({r.mr for r in records if r.packed_a}), machine.lanes)
    stream.emit(defined, machine.lanes)
    sharing.emit(defined)
    gemm_tiles.emit(defined, records, machine)
    gemm_region.emit(defined, machine.lanes)
    native_planner.emit(defined, machine, table)
    linear.emit(defined, machine)
    matmul.emit(defined, machine)


def _emit_attention(defined: Functions, machine: Machine, table: CostTable) -> None:
    """Attention, and all of `GEMM`, which its models call too."""
    _emit_gemm(defined, machine, table)
    attention.emit(defined, machine, table)


def _emit_plain(defined: Functions, machine: Machine, _table: CostTable) -> None:
    """Products of other types, in plain loops."""
    product.emit(defined)
    sharing.emit(defined)
    plain.emit(defined, machine)


def _emit_conv(defined: Functions, machine: Machine, table: CostTable) -> None:
    table = table.of_convolutions
    records = [record for record in table.tasks if record.form == Form.PLAIN]
    activation.emit(defined, machine.lanes)
    bounded_activation.emit(defined, machine.lanes)
    sharing.emit(defined)
    gemm_tiles.emit_rows(defined, records, machine)
    native_planner.emit_blocks(defined, machine, table, [Form.PLAIN])
    native_conv.emit(defined, machine, table)
    conv.emit(defined, records, machine)


def _emit_depthwise(defined: Functions, machine: Machine, _table: CostTable) -> None:
    activation.emit(defined, machine.lanes)
    bounded_activation.emit(defined, machine.lanes)
    sharing.emit(defined)
    depthwise.emit(defined, machine)


def _emit_verify(defined: Functions, _machine: Machine, _table: CostTable) -> None:
    """What compares results with those of TVM's own operators."""
    verify.emit(defined)


def _emit_checks(defined: Functions, _machine: Machine, _table: CostTable) -> None:
    check.emit(defined)


_PRODUCTS = (*linear.NAMES, *matmul.NAMES)

#: All of them, one that another one contains before it. `relax_passes.functions.attach_library`
#: finds by ``entries`` which ones are needed.
PARTS = (
    Part(PLANS, (PLAN_ROWS,), _emit_plans),
    Part(GEMM, _PRODUCTS, _emit_gemm),
    Part(ATTENTION, (*_PRODUCTS, *attention_constants.NAMES), _emit_attention),
    Part(PLAIN, tuple(kind.function for kind in plain.KINDS), _emit_plain),
    Part(CONV, conv_constants.CONVOLUTIONS, _emit_conv),
    Part(DEPTHWISE, conv_constants.DEPTHWISE_CONVOLUTIONS, _emit_depthwise),
    Part(VERIFY, verify.NAMES, _emit_verify),
    Part(CHECKS, (check.CHECK,), _emit_checks),
)

_BY_NAME = {part.name: part for part in PARTS}
