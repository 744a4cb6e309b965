"""What the fuzzer prints: a line for each fault, and a table by kind of form."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

from rich.table import Table
from rich.text import Text

from bench.fuzz.execute import Outcome, Verdict
from bench.fuzz.inject import KINDS
from bench.fuzz.run import form_of


def reproduction(seed: int, case: int) -> str:
    """The command that runs one case again."""
    return f"python -m bench.fuzz --seed {seed} --case {case}"


def fault_line(seed: int, outcome: Outcome) -> str:
    return (
        f"{outcome.verdict.value}: {outcome.kind}: {reproduction(seed, outcome.case)}"
        f"  # {outcome.detail}"
    )


def one_of_each_form(outcomes: Iterable[Outcome]) -> list[tuple[Outcome, int]]:
    """The first fault of each form and verdict, and how many cases there are of it."""
    found: dict[tuple[int, Verdict], list[Outcome]] = defaultdict(list)
    for outcome in sorted(outcomes, key=lambda each: each.case):
        found[form_of(outcome.case), outcome.verdict].append(outcome)
    return [(same[0], len(same)) for same in found.values()]


def refused_lines(seed: int, outcomes: Iterable[Outcome]) -> list[str]:
    """A line for each form that TVM cannot compile, with us or without."""
    refused = [each for each in outcomes if each.verdict is Verdict.REFUSED]
    return [fault_line(seed, outcome) for outcome, _ in one_of_each_form(refused)]


COLUMNS = (
    ("right", (Verdict.RIGHT,)),
    ("raised as\nexpected", (Verdict.RAISED,)),
    ("plain TVM's\nfaults", (Verdict.PLAIN,)),
    ("TVM cannot\ncompile", (Verdict.REFUSED,)),
    ("wrong", (Verdict.WRONG, Verdict.SILENT, Verdict.ERROR, Verdict.STRAY, Verdict.BROKEN)),
    ("crashed", (Verdict.CRASHED, Verdict.HUNG)),
)


def table(outcomes: Sequence[Outcome]) -> Table:
    """Cases by kind of form. "rewritten" counts those whose matmuls are all ours, "left" those
    with one that is not."""
    result = Table(title=None)
    result.add_column("form")
    for name in ("forms", "cases", "rewritten", "left", *(name for name, _ in COLUMNS)):
        result.add_column(name, justify="right")
    kinds = sorted({outcome.kind for outcome in outcomes})
    for kind in kinds:
        result.add_row(*_row(kind, [each for each in outcomes if each.kind == kind]))
    result.add_section()
    result.add_row(*_row("all", outcomes))
    return result


def _row(name: str, outcomes: Sequence[Outcome]) -> list[str | Text]:
    forms = len({form_of(each.case) for each in outcomes})
    left = sum(each.left > 0 for each in outcomes)
    rewritten = sum(each.left == 0 and each.rewritten > 0 for each in outcomes)
    row: list[str | Text] = [name, *map(str, (forms, len(outcomes), rewritten, left))]
    for _, verdicts in COLUMNS:
        count = sum(each.verdict in verdicts for each in outcomes)
        fault = any(verdict.is_fault for verdict in verdicts) and count
        row.append(Text(str(count), style="bold red" if fault else "") if count else "")
    return row


def injected_table(outcomes: Sequence[Outcome]) -> tuple[Table, list[Outcome]]:
    """Faults made on purpose and how many of them were found, and those that were not."""
    result = Table("fault", "made", "found")
    missed: list[Outcome] = []
    for kind, (_, verdict) in KINDS.items():
        made = [each for each in outcomes if each.injected == kind]
        # what plain TVM may give, too, has been noticed all the same
        found = [each for each in made if each.verdict in (verdict, Verdict.PLAIN)]
        missed += [each for each in made if each not in found]
        result.add_row(kind, str(len(made)), str(len(found)))
    return result, missed
