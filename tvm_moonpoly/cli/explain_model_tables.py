"""The explanation of a model as tables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

from tvm_moonpoly.cli import output
from tvm_moonpoly.model_explanation.as_data import to_json

if TYPE_CHECKING:
    from tvm_moonpoly.model_explanation import ModelExplanation


def show(found: ModelExplanation, inputs: Sequence[dict[str, Any]], most: int) -> None:
    """Print it; of functions the `most` expensive ones."""
    document, console = to_json(found), output.console()
    for each in inputs:
        shape = ", ".join(str(size) for size in each["shape"])
        output.say(console, f"input {each['name']}: {each['dtype']} ({shape})")
    output.say(
        console,
        f"{document['rewritten']} operators rewritten, {document['left']} left as they were",
    )
    _facts(console, document)
    _passes(console, document["ours"])
    _memory(console, document)
    if document["sizes"] is None:
        output.say(console, "times: give the size of each dynamic dimension by --dims")
    elif document["ours"]["profile"] is None:
        output.say(console, "times: not measured")
    else:
        _kinds(console, document)
        for title in ("plain", "ours"):
            _functions(console, title, document[title], most)


def _facts(console: Console, document: dict[str, Any]) -> None:
    if document["facts"]:
        table = output.table(
            ["size", "smallest", "largest", "multiple of", "likely"],
            [
                [
                    each["size"],
                    "-" if each["smallest"] is None else each["smallest"],
                    "-" if each["largest"] is None else each["largest"],
                    each["multiple_of"],
                    ", ".join(map(str, each["likely"])),
                ]
                for each in document["facts"]
            ],
        )
        _print(console, "what is known of sizes", table)
    for each in document["relations"]:
        output.say(console, each)


def _passes(console: Console, compiled: dict[str, Any]) -> None:
    table = output.table(
        ["pass", "ms", "changed"],
        [
            [each["name"], f"{each['seconds'] * 1e3:.0f}", each["changed"]]
            for each in compiled["passes"]
        ],
    )
    _print(console, f"passes, in order; compiled in {compiled['compile_seconds']:.1f} s", table)


def _memory(console: Console, document: dict[str, Any]) -> None:
    for title, compiled in _both(document):
        memory = compiled["memory"]
        peak = memory["peak_bytes"]
        size = "depends on sizes" if peak is None else output.size(peak)
        output.say(
            console,
            f"memory, {title}: peak {size}; {memory['storages']} blocks for {memory['tensors']} "
            "tensors",
        )


def _kinds(console: Console, document: dict[str, Any]) -> None:
    profiles = [(title, compiled["profile"]) for title, compiled in _both(document)]
    kinds = dict.fromkeys(kind for _, each in profiles for kind in each["kinds"])
    body = [
        [kind, *(_milliseconds(each["kinds"].get(kind, 0.0)) for _, each in profiles)]
        for kind in kinds
    ]
    totals = ["a whole call", *(_milliseconds(each["seconds"]) for _, each in profiles)]
    table = output.table(["work", *(f"{title}, ms" for title, _ in profiles)], [*body, totals])
    sizes = ", ".join(f"{name}={size}" for name, size in document["sizes"].items())
    _print(console, f"time by kind of work{' with ' + sizes if sizes else ''}", table)
    if len(profiles) == 2:
        ratio = profiles[0][1]["seconds"] / profiles[1][1]["seconds"]
        output.say(console, f"plain TVM takes {ratio:.2f} times as long")


def _functions(console: Console, title: str, compiled: dict[str, Any] | None, most: int) -> None:
    if compiled is None:
        return
    rows = merged(compiled["profile"])
    total = sum(row["seconds"] for row in rows) or 1.0
    rest = rows[most:]
    if rest:
        calls, seconds = (sum(row[key] for row in rest) for key in ("calls", "seconds"))
        other = {"name": f"{len(rest)} others", "calls": calls, "seconds": seconds}
        rows = [*rows[:most], {**other, "predicted": None}]
    ours = title == "ours"
    table = output.table(
        ["function", "calls", "ms", "%", *(["predicted ms"] * ours)],
        [
            [
                row["name"],
                row["calls"],
                _milliseconds(row["seconds"]),
                f"{100 * row['seconds'] / total:.1f}",
                *([_predicted(row["predicted"])] * ours),
            ]
            for row in rows
        ],
    )
    _print(console, "functions here" if ours else "functions in plain TVM", table)


def _print(console: Console, title: str, table: Table) -> None:
    """A table below a title, which would be folded to its width as a part of it."""
    output.say(console, "")
    output.say(console, title)
    console.print(table)


def merged(profile: dict[str, Any]) -> list[dict[str, Any]]:
    """The functions of a profile, all shapes of one together, the most expensive first."""
    found: dict[str, dict[str, Any]] = {}
    for each in profile["functions"]:
        row = found.setdefault(
            each["name"], {"name": each["name"], "calls": 0, "seconds": 0.0, "predicted": 0.0}
        )
        row["calls"] += each["calls"]
        row["seconds"] += each["seconds"]
        cost = each["predicted_seconds"]
        row["predicted"] = None if None in (cost, row["predicted"]) else row["predicted"] + cost
    return sorted(found.values(), key=lambda row: -row["seconds"])


def _both(document: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    named = [("plain TVM", document["plain"]), ("here", document["ours"])]
    return [(title, compiled) for title, compiled in named if compiled is not None]


def _milliseconds(seconds: float) -> str:
    return f"{seconds * 1e3:.3f}"


def _predicted(seconds: float | None) -> str:
    return "-" if seconds is None else _milliseconds(seconds)
