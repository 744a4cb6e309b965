"""Forms compiled as one module, in one of several ways."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tvm
from tvm import relax
from tvm.target import Target

import tvm_moonpoly
from bench.fuzz import hooks
from bench.fuzz.build import build_module
from bench.fuzz.graph import Form, Node, Role, walk
from relax_passes import Report
from tvm_moonpoly import operators

#: Number of the stream of random numbers that the ways of compiling are drawn from.
WAY_STREAM = 5
#: Functions that take a tensor at any address: they do not read it, or make no assumption.
HARMLESS = (hooks.OURS, hooks.DETOUR, "vm.builtin.check", "vm.builtin.match")


@dataclass(frozen=True)
class Way:
    """How a module is compiled. ``detours``: packed functions are called through `hooks.Detour`;
    the rest are arguments of the pipeline."""

    detours: bool = False
    schedule_memory_bound: bool = True
    static: bool = False
    lift_parameters: bool = False
    verify: bool = False
    share_symbols: bool = False


def draw_way(seed: int, group: int, detours: bool | None = None) -> Way:
    """The way of group number ``group``."""
    chances = np.random.default_rng([WAY_STREAM, seed, group]).random(6)
    return Way(
        detours=bool(chances[0] < 0.5) if detours is None else detours,
        schedule_memory_bound=bool(chances[1] < 0.7),
        static=bool(chances[2] < 0.4),
        lift_parameters=bool(chances[3] < 0.3),
        verify=bool(chances[4] < 0.15),
        share_symbols=bool(chances[5] < 0.5),
    )


@dataclass(frozen=True)
class Compiled:
    """A virtual machine with the functions of some forms. ``plain`` are for each form the matmuls
    that were left to TVM; ``exact_ends`` the parameters that only functions of ours read, which may
    therefore lie anywhere; ``lifted`` the forms whose weights are transformed first."""

    vm: Any
    plain: Mapping[str, frozenset[str]]
    matmuls: Mapping[str, int]
    exact_ends: Mapping[str, frozenset[str]]
    lifted: frozenset[str]
    report: Report


def compile_forms(forms: Sequence[Form], seed: int, way: Way, target: Target) -> Compiled:
    """Compile ``forms`` with the pipeline under test. Raises what TVM raises."""
    mod = build_module(forms, seed, way.share_symbols)
    report = Report()
    names: set[str] = set()
    under_test = tvm_moonpoly.pipeline(
        target,
        report=report,
        schedule_memory_bound=way.schedule_memory_bound,
        static=way.static,
        lift_parameters=way.lift_parameters,
        verify=way.verify,
    )

    @tvm.transform.module_pass(opt_level=0, name="WithDetours")
    def pipeline(mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        compiled = under_test(mod)
        return hooks.take_detours(compiled, names) if way.detours else compiled

    executable = tvm.compile(mod, target, relax_pipeline=pipeline)
    for name in names:
        hooks.Detour(operators.library(target).module, name)
    text = executable.as_text()
    lifted = frozenset(form.name for form in forms if f"@{form.name}_transform_params:" in text)
    return Compiled(
        vm=relax.VirtualMachine(executable, tvm.cpu()),
        plain={form.name: _left(form, report) for form in forms},
        matmuls={form.name: len(_matmuls(form)) for form in forms},
        exact_ends={form.name: _only_ours(form, text) for form in forms},
        lifted=lifted,
        report=report,
    )


def plain_compiles(form: Form, seed: int, target: Target) -> bool:
    """Whether TVM can compile ``form`` without our passes."""
    mod = build_module([form], seed)
    try:
        tvm.compile(mod, target, relax_pipeline=relax.get_default_pipeline(target))
    except Exception:
        return False
    return True


def _matmuls(form: Form) -> list[Node]:
    return [node for node in walk(form.nodes) if node.op == "matmul"]


def _left(form: Form, report: Report) -> frozenset[str]:
    """The matmuls of ``form`` that the report says were left, by their nodes' names. Entries are in
    program order, those of a private function apart."""
    bodies = [node.attrs["body"] for node in form.nodes if node.op == "call"]
    inside = [node.name for body in bodies[:1] for node in body.nodes if node.op == "matmul"]
    outside = tuple(node for node in form.nodes if node.op != "call")
    own = [node.name for node in walk(outside) if node.op == "matmul"]
    left: set[str] = set()
    for function, names in ((form.name, own), (f"{form.name}_part", inside)):
        actions = [
            entry.action
            for entry in report
            if entry.function == function and entry.operator == "matmul"
        ]
        if len(actions) == len(names):
            left.update(n for n, action in zip(names, actions, strict=True) if action == "left")
        elif "left" in actions:
            left.update(names)
    return frozenset(left)


def _only_ours(form: Form, text: str) -> frozenset[str]:
    """Dynamic inputs of ``form`` that the executable hands to functions of ours only, as its
    instructions (``text``) say: the first registers are the parameters."""
    match = re.search(rf"^@{form.name}:\n(.*?)(?:^@|\Z)", text, re.MULTILINE | re.DOTALL)
    assert match is not None, form.name
    read_by_others: set[int] = set()
    for line in match[1].splitlines():
        call = re.match(r"\s*call\s+(\S+)\s+in:(.*?)dst:", line)
        registers = {int(number) for number in re.findall(r"%(\d+)\b", call[2] if call else line)}
        harmless = call is not None and call[1].startswith(HARMLESS)
        if not harmless:
            read_by_others |= registers
    first = 1 if form.undefined_symbols() else 0
    order = form.of_role(Role.DYNAMIC, Role.CONDITION)
    return frozenset(each.name for i, each in enumerate(order, first) if i not in read_by_others)
