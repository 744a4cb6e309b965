"""``moonpoly logs list|show|export|validate|import|clear``: the tuning logs of this user."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tvm_moonpoly.cli import log_contents, output
from tvm_moonpoly.cli.command import UserError, parser

if TYPE_CHECKING:
    from tvm_moonpoly.logs import TuningLog

EXAMPLES = """
moonpoly logs list
moonpoly logs show
moonpoly logs export znver4.jsonl
moonpoly logs validate znver4.jsonl
moonpoly logs import znver4.jsonl
moonpoly logs show nvidia-a100/gemm_f16.jsonl
moonpoly logs clear --yes
"""


def main(arguments: Sequence[str]) -> int:
    """Run one of the six; returns the exit code."""
    options = _parser().parse_args(arguments)
    run = {
        "list": _list,
        "show": _show,
        "export": _export,
        "validate": _validate,
        "import": _import,
        "clear": _clear,
    }
    return run[options.action](options)


def _parser() -> argparse.ArgumentParser:
    found = parser(
        "logs",
        "Tuning logs hold what micro-kernels cost on a machine. They are looked for below "
        "MOONPOLY_HOME, in the user's data folder, and among those that come with the package.",
        EXAMPLES,
    )
    actions = found.add_subparsers(dest="action", metavar="ACTION", required=True)

    def add(name: str, summary: str) -> argparse.ArgumentParser:
        action = actions.add_parser(name, help=summary, description=summary, allow_abbrev=False)
        action.add_argument("--json", action="store_true", help="print JSON")
        return action

    which = "its place, as 'list' prints it, or a file (default: the one in use)"
    add("list", "all logs, and whether and why each is used here")
    add("show", "what a log holds").add_argument("log", nargs="?", help=which)
    export = add("export", "write a log to a file, to be imported on another machine")
    export.add_argument("file", type=Path, help="the file to write, - for standard output")
    export.add_argument("--log", help=which)
    export.add_argument("--replace", action="store_true", help="replace the file if it exists")
    validate = add("validate", "check all of a log, whatever machine it is of")
    validate.add_argument("log", help=which)
    import_ = add("import", "check a log, then put it where it is found")
    import_.add_argument("file", type=Path, help="the file, - for standard input")
    import_.add_argument("--replace", action="store_true", help="replace the log of that machine")
    clear = add("clear", "remove the logs that were tuned or imported")
    clear.add_argument("-y", "--yes", action="store_true", help="do not ask")
    return found


def _list(options: argparse.Namespace) -> int:
    from tvm_moonpoly.cli.log_files import listed

    rows = listed()
    if options.json:
        output.print_json(rows)
        return 0
    columns = ["log", "CPU or GPU", "instructions", "kernels", "written by", "here"]
    names = ["origin", "mcpu", "isa", "kernels", "package", "verdict"]
    output.console().print(
        output.table(columns, [[row[name] or "-" for name in names] for row in rows])
    )
    return 0


def _show(options: argparse.Namespace) -> int:
    from tvm_moonpoly.cli.log_files import chosen

    log = chosen(options.log)
    if options.json:
        output.print_json(
            {**log_contents.header(log), "entries": [dict(entry) for entry in log.entries]}
        )
        return 0
    console = output.console()
    output.print_pairs(
        console,
        [(name, log_contents.plain(value)) for name, value in log_contents.header(log).items()],
    )
    if log.of_gpu:
        from tvm_moonpoly.cli import gpu_log_files

        console.print(output.table(gpu_log_files.COLUMNS, gpu_log_files.rows_of(log)))
        return 0
    kernels, others = log_contents.split(log)
    columns = ["rows", "vectors", "operands", "decisions", *log_contents.TASKS]
    console.print(output.table(columns, kernels))
    for entry in others:
        line = ", ".join(f"{name} {log_contents.plain(value)}" for name, value in entry.items())
        output.say(console, line)
    return 0


def _export(options: argparse.Namespace) -> int:
    from tvm_moonpoly import logs
    from tvm_moonpoly.cli.log_files import chosen

    log = chosen(options.log)
    to_stdout = str(options.file) == "-"
    if options.json and to_stdout:
        raise UserError("--json: standard output is for the log itself")
    lines = [log.header, *log.entries]
    if to_stdout:
        sys.stdout.write(b"".join(map(logs.encode, lines)).decode())
        return 0
    if options.file.exists():
        # a device or a pipe would be replaced too
        if not options.file.is_file():
            raise UserError(f"{options.file}: it is no regular file; - is standard output")
        if not options.replace:
            raise UserError(f"{options.file}: it exists; --replace replaces it")
    return _written(options, options.file, log, lines, shared=False)


def _validate(options: argparse.Namespace) -> int:
    from tvm_moonpoly.cli.log_files import checked, stored_bytes

    log, _ = checked(stored_bytes(options.log), options.log)
    if options.json:
        output.print_json({**log_contents.header(log), "entries": len(log.entries)})
    else:
        told = log_contents.in_words(log, f"{len(log.entries)} entries")
        output.say(output.console(), f"{options.log}: in order, {told}")
    return 0


def _import(options: argparse.Namespace) -> int:
    from tvm_moonpoly import logs
    from tvm_moonpoly.cli.log_files import checked, contents

    from_stdin = str(options.file) == "-"
    data = logs.bounded(sys.stdin.buffer) if from_stdin else contents(options.file)
    log, path = checked(data, "standard input" if from_stdin else str(options.file))
    if path.exists() and not options.replace:
        raise UserError(
            f"there is a log of {log.machine_name} already, {path}; --replace replaces it"
        )
    return _written(options, path, log, [log.header, *log.entries], shared=True)


def _written(
    options: argparse.Namespace, path: Path, log: TuningLog, lines: list[Any], shared: bool
) -> int:
    from tvm_moonpoly import logs

    if not logs.replace(path, lines, shared, overwrite=options.replace):
        return 1  # and has said why
    count = sum(str(entry.get("kind")).endswith("kernel") for entry in log.entries)
    if options.json:
        output.print_json({**log_contents.header(log), "path": str(path), "kernels": count})
    else:
        output.say(
            output.console(), f"wrote {log_contents.in_words(log, f'{count} kernels')} to {path}"
        )
    return 0


def _clear(options: argparse.Namespace) -> int:
    from tvm_moonpoly import logs
    from tvm_moonpoly.cli.log_files import own_files

    folder, paths = own_files()
    console = output.console(to_stderr=True)
    if paths and not options.yes:
        for path in paths:
            output.say(console, str(path))
        if not sys.stdin.isatty():
            raise UserError("clear: --yes is needed where nobody can be asked")
        print(f"remove {_count(paths)}? [y/N] ", end="", file=sys.stderr, flush=True)
        if sys.stdin.readline().strip().lower() not in ("y", "yes"):
            console.print("nothing was removed")
            return 1
    removed = [path for path in paths if logs.remove(path)]
    if options.json:
        output.print_json({"folder": str(folder), "removed": [str(path) for path in removed]})
    else:
        output.say(output.console(), f"removed {_count(removed)} from {folder}")
    return 0 if removed == paths else 1


def _count(paths: Sequence[Path]) -> str:
    return "1 log" if len(paths) == 1 else f"{len(paths)} logs"
