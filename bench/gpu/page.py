"""A page of Markdown out of ``results.json``, what is wrong and what is lost first.

``python -m bench.gpu.page results.json`` prints it.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.gpu.runner.document import FORMAT, best_share, geomean

#: Where results lie in this repository, once there are any.
FOLDER = Path(__file__).resolve().parents[1] / "results"

NOT_MEASURED = "not measured"

#: Rows of a product by which ratios are summed up: the largest of each group.
GROUPS = ((1, "M = 1"), (16, "M = 2..16"), (64, "M = 17..64"), (512, "M = 65..512"))

#: What `document` always writes.
_FIELDS = (
    "bundle", "gpu", "versions", "clocks", "correct", "peak", "no_peer", "speed", "planner",
    "failures",
)  # fmt: skip

Case = dict[str, Any]


def read(path: Path) -> dict[str, Any]:
    """The results; raises ValueError where they are none that `run.py` writes."""
    try:
        results = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path}: it is not JSON: {error}") from None
    if not isinstance(results, dict) or results.get("format") != FORMAT:
        raise ValueError(f"{path}: it holds no results of format {FORMAT}, which alone is known")
    missing = [name for name in _FIELDS if name not in results]
    if missing:
        raise ValueError(f"{path}: it is not what run.py writes: {', '.join(missing)} missing")
    return results


def find(gpu: str | None = None) -> Path | None:
    """The results kept in this repository, of one GPU or of any; None where there are none."""
    found = sorted(FOLDER.glob(f"gpu-{gpu or '*'}.json"))
    return found[0] if found else None


def page(results: dict[str, Any] | None) -> str:
    """The page; without results one sentence."""
    if results is None:
        return f"# On a GPU\n\nCorrectness and speed on a GPU: {NOT_MEASURED}.\n"
    parts = [_head(results), _correct(results), _speed(results), _planner(results)]
    if results["failures"]:
        lines = [f"* {f['part']} `{f['key']}`: {f['reason']}" for f in results["failures"]]
        parts.append("## What could not be measured\n\n" + "\n".join(lines))
    return "\n\n".join(parts) + "\n"


def table(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """A table of Markdown, all columns but the first to the right."""
    lines = [columns, ["---", *["---:"] * (len(columns) - 1)], *rows]
    return "\n".join("| " + " | ".join(str(cell) for cell in line) + " |" for line in lines)


def peak_flops(results: dict[str, Any], library: str) -> float | None:
    """Operations a second of the fastest large square product measured, ours or the peer's."""
    found = results["peak"].get(library)
    if not found:
        return None
    from bench.gpu.runner.parts import PEAK_SIDE

    seconds = [found[state][who] for state in ("cold", "warm") for who in ("ours", "peer")]
    return float(2 * PEAK_SIDE**3 / min(seconds))


def group(case: Case) -> str:
    """The group of a case, by its rows."""
    return next((name for limit, name in GROUPS if case["m"] <= limit), "M > 512")


def _head(results: dict[str, Any]) -> str:
    gpu, versions = results["gpu"], results["versions"]
    lines = [
        f"# On {gpu.get('name', 'a GPU')}",
        "",
        f"{gpu.get('arch')}, {gpu.get('multiprocessors')} multiprocessors, driver "
        f"{gpu.get('driver')}; bundle `{results['bundle'][:12]}`; "
        + ", ".join(f"{name} {value}" for name, value in versions.items())
        + ".",
    ]
    lines += [f"Clocks {text}." for text in results["clocks"]]
    return "\n".join(lines)


def _correct(results: dict[str, Any]) -> str:
    correct = results["correct"]
    if not correct["checked"]:
        return f"## Correctness\n\n{NOT_MEASURED.capitalize()}."
    wrong = correct["wrong"]
    lines = [
        "## Correctness",
        "",
        f"{correct['checked'] - len(wrong)} of {correct['checked']} results are right "
        f"({correct['cases']} cases are in the bundle; reference: {correct['reference']}).",
    ]
    if wrong:
        rows = [(f"`{case['key']}`", case["reason"]) for case in wrong]
        lines += ["", table(("wrong", "what"), rows)]
    return "\n".join(lines)


def _speed(results: dict[str, Any]) -> str:
    cases = results["speed"]
    if not cases:
        reason = f": {results['no_peer']}" if results["no_peer"] else ""
        return f"## Against cuBLAS\n\n{NOT_MEASURED.capitalize()}{reason}."
    parts = ["## Against cuBLAS (`torch.matmul`)", _losses(cases)]
    for library in dict.fromkeys(case["library"] for case in cases):
        own = [case for case in cases if case["library"] == library]
        parts.append(_summed(results, library, own))
    return "\n\n".join(parts)


def _losses(cases: Sequence[Case]) -> str:
    """Every case in which cuBLAS is faster, the worst first."""
    lost = [case for case in cases if _least(case) < 1]
    if not lost:
        return f"cuBLAS is faster in none of {len(cases)} cases."
    rows = [
        (
            f"{case['m']} x {case['n']} x {case['k']}",
            case["library"],
            case.get("what", ""),
            f"{case['cold']['ratio']:.2f}",
            f"{case['warm']['ratio']:.2f}",
            f"{case['warm']['ours'] * 1e6:.1f}",
            f"{case['warm']['peer'] * 1e6:.1f}",
        )
        for case in sorted(lost, key=_least)
    ]
    columns = ("M x N x K", "form", "of", "cold", "warm", "ours, us", "cuBLAS, us")
    return (
        f"cuBLAS is faster in {len(lost)} of {len(cases)} cases, with L2 flushed or warm. Its time "
        f"by ours, the worst first (times with L2 warm):\n\n{table(columns, rows)}"
    )


def _least(case: Case) -> float:
    return float(min(case[state]["ratio"] for state in ("cold", "warm")))


def _summed(results: dict[str, Any], library: str, cases: Sequence[Case]) -> str:
    """One form's cases by their rows."""
    peak = peak_flops(results, library)
    names = [*dict.fromkeys(name for _, name in GROUPS), "M > 512"]
    rows = []
    for name in [*names, "all"]:
        own = [case for case in cases if name in ("all", group(case))]
        if own:
            rows.append((name, len(own), *_figures(own, peak)))
    columns = (
        "rows", "cases", "geomean, cold", "wins, cold", "geomean, warm", "wins, warm",
        "median of peak, warm",
    )  # fmt: skip
    told = NOT_MEASURED if peak is None else f"{peak / 1e12:.0f} TFLOP/s"
    return f"### {library}\n\nMeasured peak: {told}.\n\n{table(columns, rows)}"


def _figures(cases: Sequence[Case], peak: float | None) -> list[str]:
    found = []
    for state in ("cold", "warm"):
        ratios = [case[state]["ratio"] for case in cases]
        wins = sum(ratio > 1 for ratio in ratios)
        found += [f"{geomean(ratios):.2f}", f"{wins} of {len(ratios)}"]
    found.append(NOT_MEASURED if peak is None else _share(cases, peak))
    return found


def _share(cases: Sequence[Case], peak: float) -> str:
    shares = sorted(
        2 * c["batch"] * c["m"] * c["n"] * c["k"] / c["warm"]["ours"] / peak for c in cases
    )
    return f"{shares[len(shares) // 2]:.0%}"


def _planner(results: dict[str, Any]) -> str:
    cases = results["planner"]
    if not cases:
        return f"## The planner's choice\n\n{NOT_MEASURED.capitalize()}."
    shares = [best_share(case) for case in cases]
    worst = sorted(zip(shares, cases, strict=True), key=lambda pair: pair[0])[:10]
    rows = []
    for share, case in worst:
        best = min(case["plans"], key=lambda plan: float(plan["seconds"]))
        chosen = next(plan for plan in case["plans"] if plan["chosen"])
        name = f"{case['m']} x {case['n']} x {case['k']}"
        rows.append((name, f"{share:.2f}", _kernels(chosen), _kernels(best)))
    return (
        f"## The planner's choice\n\nOn {len(cases)} shapes it takes as long as the best measured "
        f"plan in {sum(share > 0.97 for share in shares)}, within 3 %; geomean "
        f"{geomean(shares):.3f} of the best. The worst:\n\n"
        + table(("M x N x K", "of the best", "chosen", "best"), rows)
    )


def _kernels(plan: dict[str, Any]) -> str:
    return " + ".join(f"`{name}`" for name, *_ in plan["launches"])


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the page of a results' file."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.gpu.page", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("results", type=Path, nargs="?", help="by default those in bench/results")
    path = parser.parse_args(arguments).results or find()
    try:
        print(page(read(path) if path else None), end="")
    except (OSError, ValueError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
