"""The packed functions of an attention: products, softmax and products again, without their
results in memory beyond some rows of scores.

``moonpoly_attention_f32(q, k, v, spec, out)`` and with a mask before ``spec``:
``out = softmax(scale * q @ k.T + mask) @ v`` for each batch entry and head. Where their dimensions
lie in the stored tensors is told by ``spec``, see `AttentionSpec`.
"""

from __future__ import annotations

from typing import Any

from tvm_moonpoly.costmodel.tables import CostTable
from tvm_moonpoly.emit import INT, Functions, Pointer, as_int, let, scratch, when
from tvm_moonpoly.machine import Machine
from tvm_moonpoly.numbers import Numbers
from tvm_moonpoly.operators import (
    attention_arguments,
    attention_plan,
    attention_softmax,
    attention_tile,
    dltensor,
)
from tvm_moonpoly.operators.attention_arguments import ARGUMENTS
from tvm_moonpoly.operators.attention_constants import ATTENTION, ATTENTION_MASKED
from tvm_moonpoly.operators.attention_plan import PLAN, PLANNED
from tvm_moonpoly.operators.attention_tile import CHUNK, POINTERS
from tvm_moonpoly.operators.sharing import Each, run_chunks, with_space


def emit(functions: Functions, machine: Machine, table: CostTable) -> None:
    """Define `ATTENTION` and `ATTENTION_MASKED`."""
    attention_arguments.emit(functions)
    attention_softmax.emit(functions, machine.lanes)
    attention_plan.emit(functions, machine, table)
    attention_tile.emit(functions, machine)
    for name in (ATTENTION, ATTENTION_MASKED):
        _emit_public(functions, name)


def _emit_public(functions: Functions, name: str) -> None:
    added = ["mask"] if name == ATTENTION_MASKED else []
    parameters = dict.fromkeys(["q", "k", "v", *added, "spec", "out"], "handle")

    @functions.public(name, **parameters)
    def _(**handles: Any) -> None:
        call = Numbers(PLANNED)
        given = {"mask": handles["q"], **handles}
        order = ("q", "k", "v", "mask", "spec", "out")
        functions[ARGUMENTS](*(given[each] for each in order), len(added), call.memory.at(0))
        with when(call["batch"] * call["rows"] > 0):
            functions[PLAN](call.memory.at(0))
            tensors = [dltensor.address(given[each], dltensor.DATA, "float32") for each in POINTERS]
            size = let(call["space"])

            def work(each: Each) -> None:
                def chunks(space: Pointer) -> None:
                    # the head of k and v that is packed in this worker's space
                    packed = scratch(1, INT)
                    packed[0] = as_int(-1)
                    each(
                        lambda index: functions[CHUNK](
                            call.memory.at(0), *tensors, space.at(0), packed.at(0), index
                        )
                    )

                with_space(size, chunks)

            count = let(call["batch"] * call["heads"] * call["tiles"])
            run_chunks(let(call["workers"]), count, work)
