"""Instructions from the entry of a packed function to its first micro-kernel, by callgrind.

``python -m bench.instructions [--json FILE]``

The micro-kernels are inlined, so no symbol tells where the first one begins. Memory does: all
operands lie on pages without access rights, and the first access to any of them ends the count.
That access is the first of a micro-kernel, or of the packing of an operand, which is work on the
product as well. Everything before it is counted: argument checks, planning, workspace, all loops
and branches around the micro-kernels, also what the function calls in TVM's runtime and in libc.
Counts begin at the function's first instruction; how a caller gets there is not in them.

* Callgrind counts by blocks and leaves out the block that is interrupted; ``--vex-guest-max-insns``
  makes each instruction a block. The result is exact, but for one instruction that is counted
  twice when a table of plans is read (the read is interrupted, then made again).
* The table of plans lies on such pages too, and a profile is dumped when it is read or the planner
  is entered, and when the loops of a region are entered. So the parts are told apart:
  ``checks`` (arguments, shapes, strides), ``planning`` (the native planner's own functions),
  ``sharing`` (the plan decoded, shares and workspace worked out), ``region`` (loops and branches
  down to the first micro-kernel).
* The library that is measured is the shipped one: its private functions have symbols.
* The library is compiled for this CPU, for one core and without AVX-512, which valgrind does not
  know. Functions keep no state: ``first`` differs from ``later`` where libraries are bound and
  workspace is allocated for the first time.
* The planner alone is the difference of ``moonpoly_plan_rows`` for m and m - 1 rows. It is
  compiled apart from that of the products, which may take some percent more or less.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from bench.callgrind import Profile, total_own
from bench.console import wide_console
from bench.instruction_calls import JOBS, KINDS, Job
from bench.packed_calls import (
    DRIVER,
    LIBRARY,
    PLAN,
    REGION,
    NamedLibrary,
    UnknownInstruction,
    baseline_target,
    build_driver,
    measurable_target,
    named_library,
    run,
)

#: Instructions that entry to first micro-kernel may take for a shape seen before.
LIMIT = 1500

PARTS = ("checks", "planning", "sharing", "region")

_PLANNER = re.compile(r"_internal_moonpoly_(plan|with_blocks|group_cost|edge_cost)")


@dataclass(frozen=True)
class Count:
    """The instructions of one `Job`.

    ``first`` and ``later``: from entry to the first micro-kernel, in the first and in a later call.
    ``parts`` and ``functions`` divide ``later``; ``runtime`` is what of it lies outside the
    library. ``ended_by`` is the operand that was touched first. ``planner`` is one plan alone.
    """

    job: Job
    first: int
    later: int
    parts: dict[str, int]
    functions: dict[str, int]
    runtime: int
    ended_by: str
    planner: int


def measure(jobs: Sequence[Job], target: Any = None) -> tuple[list[Count], str]:
    """Count ``jobs``; returns the counts and the target that the library was compiled for.

    ``target`` is this CPU by default. Raises RuntimeError with a sentence when valgrind or a
    compiler is missing, the target has no micro-kernels, or the driver fails.
    """
    if shutil.which("valgrind") is None:
        raise RuntimeError("valgrind is missing; install it, for example: apt-get install valgrind")
    targets = [target] if target is not None else [measurable_target(), baseline_target()]
    with tempfile.TemporaryDirectory(prefix="moonpoly-instructions-") as name:
        folder = Path(name)
        driver = build_driver(folder)
        for each in targets:
            try:
                return count(jobs, driver, named_library(each, folder), folder), str(each)
            except UnknownInstruction:
                continue
    raise RuntimeError("valgrind does not know an instruction of the library")


def count(jobs: Sequence[Job], driver: Path, library: NamedLibrary, folder: Path) -> list[Count]:
    """Count ``jobs`` in one run of the driver, and their plans in another."""
    calls, ends = run(driver, folder, library, [str(job) for job in jobs], parts=True)
    plans, _ = run(driver, folder, library, [f"plan_{job}" for job in jobs], parts=False)
    done = split_calls(calls, {str(job) for job in jobs})
    if not len(done) == len(ends) == len(plans) == 2 * len(jobs):
        raise RuntimeError("callgrind wrote another number of profiles than there were calls")
    counts = []
    for i, job in enumerate(jobs):
        first, later = done[2 * i], done[2 * i + 1]
        own = total_own(later)
        names: Counter[str] = Counter()
        for (_, function), number in own.items():
            names[function] += number
        counts.append(
            Count(
                job,
                first=sum(profile.total for profile in first),
                later=sum(profile.total for profile in later),
                parts=parts(later),
                functions=dict(names.most_common()),
                runtime=sum(n for (file, _), n in own.items() if not file.endswith(LIBRARY)),
                ended_by=ends[2 * i + 1],
                planner=plans[2 * i].total - plans[2 * i + 1].total,
            )
        )
    return counts


def split_calls(profiles: Iterable[Profile], ends: set[str]) -> list[list[Profile]]:
    """Cut the sequence of profiles after each whose trigger is one of ``ends``.

    What the driver itself does on behalf of a call is taken out.
    """
    calls: list[list[Profile]] = [[]]
    for profile in profiles:
        own = {key: n for key, n in profile.own.items() if not key[0].endswith(DRIVER)}
        calls[-1].append(Profile(profile.trigger, Counter(own)))
        if profile.trigger in ends:
            calls.append([])
    return [call for call in calls if call and call[-1].trigger in ends]


def parts(call: Sequence[Profile]) -> dict[str, int]:
    """The instructions of one call by `PARTS`, from its profiles in the order of their dumps."""
    found = dict.fromkeys(PARTS, 0)
    for profile in call:
        planning = sum(n for (_, name), n in profile.own.items() if _PLANNER.match(name))
        found["planning"] += planning
        rest = {"table": "checks", PLAN: "checks", REGION: "sharing"}
        found[rest.get(profile.trigger, "region")] += profile.total - planning
    return found


def document(counts: Sequence[Count], target: str) -> dict[str, Any]:
    """All figures, for JSON."""
    from bench.measure import machine_facts

    version = subprocess.run(["valgrind", "--version"], capture_output=True, text=True, check=True)
    rows = [
        {"function": KINDS[c.job.kind][0], **asdict(c.job)}
        | {name: value for name, value in asdict(c).items() if name != "job"}
        for c in counts
    ]
    facts = {"machine": machine_facts(), "valgrind": version.stdout.strip(), "target": target}
    return facts | {"limit": LIMIT, "rows": rows}


def print_document(console: Console, doc: dict[str, Any]) -> None:
    """The table, and how many calls stay within the limit."""
    console.print(f"target: {doc['target']}\n{doc['valgrind']}", highlight=False)
    table = Table(title="Instructions from entry to the first micro-kernel (or packing)")
    for title in ("function", "call"):
        table.add_column(title, no_wrap=True)
    for title in ("batch", "m", "n", "k", "first call", "later call", *PARTS, "of it in runtime"):
        table.add_column(title, justify="right")
    table.add_column("first touch")
    table.add_column("planner alone", justify="right")
    for row in doc["rows"]:
        later = f"[{'red' if row['later'] > doc['limit'] else 'green'}]{row['later']}[/]"
        table.add_row(
            *(row["function"], KINDS[row["kind"]][1]),
            *(str(row[name]) for name in ("batch", "m", "n", "k", "first")),
            later,
            *(str(row["parts"][part]) for part in PARTS),
            *(str(row["runtime"]), row["ended_by"], str(row["planner"])),
        )
    console.print(table)
    for function in dict.fromkeys(row["function"] for row in doc["rows"]):
        found = [row["later"] for row in doc["rows"] if row["function"] == function]
        within = sum(count <= doc["limit"] for count in found)
        console.print(
            f"[bold]{function}: {min(found)} to {max(found)} instructions in a later call; "
            f"{within} of {len(found)} shapes within {doc['limit']}"
        )


def main(arguments: Sequence[str] | None = None) -> int:
    """Count the calls of `JOBS` and print them."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.instructions",
        description="Instructions from the entry of a packed function to its first micro-kernel.",
    )
    parser.add_argument("--json", metavar="FILE", type=Path, help="write all figures there")
    options = parser.parse_args(arguments)
    if options.json is not None and not options.json.resolve().parent.is_dir():
        parser.error(f"--json: there is no folder {options.json.parent}")
    console = wide_console()
    try:
        counts, target = measure(JOBS)
    except RuntimeError as reason:
        console.print(f"[red]bench.instructions: {reason}", highlight=False)
        return 1
    doc = document(counts, target)
    print_document(console, doc)
    if options.json is not None:
        options.json.write_text(json.dumps(doc, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
