"""Execute notebooks again, in place: ``python -m bench.notebooks [name ...]``.

What is kept of an execution is the cells' outputs: no times, no names or paths of the machine, one
piece a stream.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.gemm.environment import fair_environment

FOLDER = Path(__file__).parent

#: What a notebook says of its kernel: any Python 3.
METADATA = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}

#: What makes text bold on a terminal, which Jupyter claims to be.
TERMINAL_CODES = re.compile(r"\x1b\[[0-9;]*m")

#: Seconds that one cell may take; tuning takes longest.
LIMIT = 3600


def cleaned(notebook: Any) -> Any:
    """``notebook`` without what differs from one execution or machine to the next but the outputs.

    Cells are numbered from above, which is also how they are executed, and named by their place.
    """
    import nbformat

    notebook = nbformat.from_dict(notebook)
    notebook.metadata = nbformat.from_dict(METADATA)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    for place, cell in enumerate(notebook.cells):
        cell.metadata = {}
        cell.id = f"cell-{place}"
    for count, cell in enumerate(code, 1):
        cell.execution_count = count
        # what libraries say on the side: warnings with paths, progress
        cell.outputs = [out for out in cell.outputs if out.get("name") != "stderr"]
        for output in cell.outputs:
            if "execution_count" in output:
                output.execution_count = count
            if "metadata" in output:
                output.metadata = {}
            if "text" in output:
                output.text = TERMINAL_CODES.sub("", output.text)
    return notebook


def execute(path: Path) -> None:
    """Execute the notebook in ``path`` and write it back.

    Raises nbclient.exceptions.CellExecutionError for a cell that fails; the file stays as it was.
    """
    import nbformat
    from nbclient import NotebookClient

    notebook = nbformat.read(path, as_version=4)
    NotebookClient(
        notebook,
        timeout=LIMIT,
        kernel_name="python3",
        record_timing=False,
        coalesce_streams=True,
        resources={"metadata": {"path": str(path.parent)}},
    ).execute(env=fair_environment(os.environ, 1))
    fresh = path.with_suffix(".new")
    nbformat.write(cleaned(notebook), fresh)
    fresh.replace(path)


def main(arguments: Sequence[str] | None = None) -> int:
    """Execute all notebooks of this folder, or the named ones."""
    known = {path.stem: path for path in sorted(FOLDER.glob("*.ipynb"))}
    parser = argparse.ArgumentParser(
        prog="python -m bench.notebooks", description="Execute notebooks again, in place."
    )
    parser.add_argument("name", nargs="*", help=f"of {', '.join(known)}; all by default")
    names = parser.parse_args(arguments).name or list(known)
    for name in names:
        if name not in known:
            parser.error(f"name: there is no notebook {name!r}, only {', '.join(known)}")
    for name in names:
        begin = time.monotonic()
        print(f"{name}: executing ...", flush=True)
        execute(known[name])
        print(f"{name}: {time.monotonic() - begin:.0f} s", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
