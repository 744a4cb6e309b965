"""A model's explanation as plain data."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tvm import relax
from tvm.ir import Expr, Var
from tvm.tirx import IntImm

from relax_passes import ShapeFacts
from relax_passes.shapes import dims, show_dim

from .explained import Compiled, ModelExplanation
from .kinds import kind_of
from .measured import Key, Profile


def to_json(found: ModelExplanation) -> dict[str, Any]:
    """All of it: times in seconds, memory in bytes."""
    return {
        "sizes": None if found.sizes is None else dict(found.sizes),
        "facts": facts_json(found.facts, found.function),
        "relations": [str(each) for each in found.facts.relations],
        "rewritten": len(found.report.rewritten),
        "left": len(found.report.left),
        "ours": _compiled(found.ours, found.predicted),
        "plain": None if found.plain is None else _compiled(found.plain, {}),
    }


def facts_json(known: ShapeFacts, func: relax.Function) -> list[dict[str, Any]]:
    """What is known of each symbolic dimension, and of what is computed from them in `func`."""
    sizes: dict[str, Expr] = {each.name: each for each in known.ranges}

    def visit(expr: relax.Expr) -> None:
        for size in dims(expr) or []:
            if not isinstance(size, IntImm):
                sizes.setdefault(show_dim(size), size)

    relax.analysis.post_order_visit(func, visit)
    found = []
    for name, size in sizes.items():
        bounds = known.bounds(size)
        found.append(
            {
                "size": name,
                "dimension": isinstance(size, Var),
                "smallest": bounds.smallest,
                "largest": bounds.largest,
                "multiple_of": known.multiple_of(size),
                "likely": list(known.likely(size)),
            }
        )
    return found


def _compiled(found: Compiled, costs: Mapping[Key, float]) -> dict[str, Any]:
    memory = found.memory
    return {
        "compile_seconds": round(found.seconds, 3),
        "passes": [
            {
                "name": each.name,
                "seconds": round(each.seconds, 4),
                "calls": each.calls,
                "loops": each.loops,
                "changed": str(each),
            }
            for each in found.changes
        ],
        "memory": {
            "storages": memory.storages,
            "tensors": memory.tensors,
            "peak_bytes": memory.peak,
            "sizes": list(memory.expressions),
        },
        "profile": None if found.profile is None else _profile(found.profile, costs),
    }


def _profile(found: Profile, costs: Mapping[Key, float]) -> dict[str, Any]:
    functions = []
    for each in found.functions:
        cost = costs.get(each.key)
        functions.append(
            {
                "name": each.name,
                "kind": kind_of(each.name),
                "shapes": [list(shape) for shape in each.shapes],
                "calls": each.calls,
                "seconds": each.seconds,
                "predicted_seconds": None if cost is None else cost * each.calls,
            }
        )
    kinds: dict[str, float] = {}
    for each in found.functions:
        kinds[kind_of(each.name)] = kinds.get(kind_of(each.name), 0.0) + each.seconds
    kinds["virtual machine"] = found.machine.seconds
    return {
        "seconds": found.total,
        "kinds": kinds,
        "machine_calls": found.machine.calls,
        "functions": functions,
    }
