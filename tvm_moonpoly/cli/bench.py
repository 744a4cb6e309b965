"""``moonpoly bench``: the repository's benchmarks, which are not installed with the package."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import tvm_moonpoly
from tvm_moonpoly.cli.command import UserError, parser

EXAMPLES = """
moonpoly bench gemm --quick
moonpoly bench gemm --quick --json out.json
moonpoly bench minilm --help
"""


def main(arguments: Sequence[str]) -> int:
    """Run one of them with the options that follow its name; returns its exit code."""
    root = Path(tvm_moonpoly.__file__).resolve().parents[1]
    known = names(root)
    found = parser(
        "bench",
        "Time this package against other libraries. It needs the repository, and what "
        "`pip install '.[bench]'` brings. Options after the name are the benchmark's own.",
        EXAMPLES,
    )
    found.add_argument("name", metavar="NAME", help=f"which: {', '.join(known) or 'none here'}")
    options = found.parse_args(arguments[:1])
    if not known:
        raise UserError(
            "the benchmarks are part of the repository, not of the installed package: run "
            "'make bench-gemm' in a checkout"
        )
    if options.name not in known:
        found.error(f"argument NAME: must be one of {', '.join(known)}, not {options.name!r}")
    # not the working folder: paths among the arguments are relative to it
    path = os.pathsep.join(filter(None, [str(root), os.environ.get("PYTHONPATH")]))
    command = [sys.executable, "-m", f"bench.{options.name}", *arguments[1:]]
    return subprocess.call(command, env={**os.environ, "PYTHONPATH": path})


def names(root: Path) -> list[str]:
    """The benchmarks of the repository at ``root``; none when it is not one."""
    modules = [path.parent for path in root.glob("bench/*/__main__.py")]
    modules += [path.with_suffix("") for path in root.glob("bench/instructions.py")]
    return sorted(path.name for path in modules)
