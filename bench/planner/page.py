"""The results in the documentation: ``python -m bench.planner.page results.json PAGE.md``.

Takes several files of results, as of one thread and of two; the example is of the first. Rewrites
what lies between the marks ``<!-- results: begin -->`` and ``<!-- results: end -->`` of a page, and
between the marks of ``example`` what ``moonpoly explain`` says, on this machine, of the shape that
`figure` draws.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from bench.planner import metrics
from bench.planner.figure import read
from bench.planner.metrics import LARGE
from bench.planner.report import (
    fine,
    microseconds,
    number,
    percent,
    plan_name,
    points,
    threads,
    wanted,
)
from bench.planner.variants import LEARNED
from tvm_moonpoly.explanation import explained
from tvm_moonpoly.explanation_text import text
from tvm_moonpoly.machine import detect_target

_FIGURES = {"mean": "mean", "p90": "90th percentile", "worst": "worst", "top1": "within 2 %"}


def results(doc: dict[str, Any]) -> str:
    """Markdown of a results file: where it is from, the targets, the large losses, the planners,
    what a wrong description of the machine costs, the cost of a decision."""
    rows, log = doc["shapes"], doc["log"]["header"]
    plans = sum(len(row["plans"]) for row in rows)
    parts = [
        f"### {threads(doc).capitalize()}",
        f"{doc['machine']['cpu']} ({doc['planned_for']['mcpu']}, {doc['planned_for']['isa']}), "
        f"the log of {log.get('machine', {}).get('mcpu')} with digest "
        f"`{doc['log']['digest']}`; {len(rows)} shapes, random ones by seed {doc['seed']}, "
        f"{plans} plans timed, by the {CLOCKS[min(doc['threads'], 2)]}.",
        targets(doc["summary"]["all"][LEARNED]),
        losses_table(rows),
        planners_table(doc),
        "The planner, told something wrong about the machine:",
        mistakes_table(doc),
    ]
    if "decision" in doc:
        parts.append(decision(doc["decision"]))
    return "\n\n".join(parts)


#: What plans of one thread and of several are timed by.
CLOCKS = {1: "processor time of the calling thread", 2: "wall clock"}


def targets(own: dict[str, Any]) -> str:
    """Which targets are missed, and a table of what is to be reached and what was."""
    missed = ", ".join(target.title for target in metrics.judged(own)[1])
    sentence = f"Targets that are missed: {missed}." if missed else "All targets are met."
    lines = [
        [
            target.title,
            wanted(target),
            fine(own[target.figure]),
            "met" if target.met(own) else "**missed**",
        ]
        for target in metrics.TARGETS
    ]
    return f"{sentence}\n\n" + table(["target", "wanted", "reached", ""], lines, left=1)


def mistakes_table(doc: dict[str, Any]) -> str:
    """What it costs to be told something wrong about the machine."""
    figures = {name: title for name, title in _FIGURES.items() if name != "top1"}
    titles = ["told", "other plan for", *figures.values(), "mean, against the planner's"]
    lines = []
    for mistake, about in doc["mistakes"].items():
        own = doc["sensitivity"][mistake]
        share = (percent(own[figure]) for figure in ("differs", *figures))
        lines.append([about, *share, f"{points(own['more'])} points"])
    return table(titles, lines, left=1)


def planners_table(doc: dict[str, Any]) -> str:
    """The planner and the others."""
    titles = ["planner", "what it is", *_FIGURES.values(), "Spearman", "Kendall"]
    lines = []
    for planner, about in doc["about"].items():
        own = doc["summary"]["all"][planner]
        lines.append(
            [planner, about, *(percent(own[figure]) for figure in _FIGURES),
             number(own["spearman"]), number(own["kendall"])]
        )  # fmt: skip
    return table(titles, lines, left=2)


def losses_table(rows: Sequence[dict[str, Any]]) -> str:
    """Every shape with a loss above `LARGE`, the worst first."""
    found = [row for row in rows if row["planners"][LEARNED]["loss"] > LARGE]
    if not found:
        return f"No shape has a loss above {LARGE:.0%}."
    found.sort(key=lambda row: -row["planners"][LEARNED]["loss"])
    titles = ["shape", "B", "m", "n", "k", "loss", "chosen", "us", "best", "us"]
    lines = []
    for row in found:
        own = row["planners"][LEARNED]
        lines.append(
            [row["name"], row["kind"], row["m"], row["n"], row["k"], percent(own["loss"]),
             plan_name(own["plan"]), microseconds(own["measured_ps"]),
             plan_name(row["best"]), microseconds(row["best_ps"])]
        )  # fmt: skip
    return f"All losses above {LARGE:.0%}:\n\n" + table(titles, lines, left=2)


def decision(cost: dict[str, Any]) -> str:
    """What a decision costs, as a sentence."""
    ns, counted = cost["ns"], cost.get("instructions")
    kinds = ", ".join(f"{kind} {value:.0f}" for kind, value in ns.items() if kind != "all")
    sentence = (
        f"A decision for a new shape takes {ns['all']:.0f} ns in native code (mean over "
        f"{cost['shapes']} random shapes; with B {kinds})"
    )
    if counted is None:
        return f"{sentence}."
    return (
        f"{sentence}, {counted['median']:.0f} instructions (median of {counted['shapes']} shapes, "
        f"{counted['least']:.0f} to {counted['most']:.0f})."
    )


def table(titles: Sequence[str], lines: Sequence[Sequence[object]], left: int) -> str:
    """A table in Markdown, all but the first ``left`` columns to the right."""
    rule = ["---"] * left + ["---:"] * (len(titles) - left)
    return "\n".join(f"| {' | '.join(map(str, line))} |" for line in (titles, rule, *lines))


def told(row: dict[str, Any]) -> str:
    """The plan of ``row``'s shape as ``moonpoly explain`` tells it, on this machine.

    Of a log that is no part of the package the name is told, not the folder.
    """
    size = f"{row['m']} {row['n']} {row['k']}"
    found = explained(row["m"], row["n"], row["k"], detect_target(cores=1))
    log = replace(found.log, origin=Path(found.log.origin).name)
    lines = "\n".join(line.rstrip() for line in text(replace(found, log=log)).splitlines())
    return f"```\n$ moonpoly explain matmul {size} --threads 1\n{lines}\n```"


def put(page: str, mark: str, new: str) -> str:
    """``page`` with ``new`` between the marks; raises ValueError when it lacks them."""
    begin, end = f"<!-- {mark}: begin -->", f"<!-- {mark}: end -->"
    pattern = re.compile(f"{re.escape(begin)}.*?{re.escape(end)}", re.DOTALL)
    replaced, count = pattern.subn(lambda _: f"{begin}\n{new}\n{end}", page)
    if count != 1:
        raise ValueError(f"page: it must have the marks {begin} and {end} once")
    return replaced


def main(arguments: Sequence[str] | None = None) -> int:
    """Rewrite the marked parts of a page."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.planner.page", description="The results in the documentation."
    )
    parser.add_argument("results", type=Path, nargs="+", help="what --json wrote")
    parser.add_argument("page", type=Path, help="the Markdown file to rewrite")
    parser.add_argument("--shape", metavar="M,N,K", help="the shape of the example")
    options = parser.parse_args(arguments)
    try:
        doc, row = read(options.results[0], options.shape)
        others = [json.loads(file.read_text()) for file in options.results[1:]]
        page = put(options.page.read_text(), "results", "\n\n".join(map(results, [doc, *others])))
        page = put(page, "example", told(row))
    except (OSError, ValueError, KeyError) as reason:
        parser.error(str(reason))
    options.page.write_text(page)
    return 0


if __name__ == "__main__":
    sys.exit(main())
