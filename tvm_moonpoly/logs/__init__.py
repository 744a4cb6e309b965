"""The log store: tuning logs are found, read, validated and written here.

A log is a file of JSON lines. The first is a header: the format's version, the machine, and what
wrote it. Each line carries a checksum of its other fields; a torn or foreign line is skipped with
a warning. Logs are data: nothing in them is executed.
"""

from __future__ import annotations

from tvm_moonpoly.logs.choice import distance, find, refusal, say_once, say_used, usable
from tvm_moonpoly.logs.document import (
    VERSION,
    Reading,
    TuningLog,
    bounded,
    gpu_header,
    header,
    parse,
    read,
    same_machine,
    tell,
)
from tvm_moonpoly.logs.gpu_choice import usable_gpu
from tvm_moonpoly.logs.lines import Entry, checksum, encode
from tvm_moonpoly.logs.places import (
    FILE_NAME,
    GPU_FILE_NAMES,
    folders,
    of_machine,
    own_gpu_path,
    own_path,
    stored,
    stored_gpu,
)
from tvm_moonpoly.logs.store import append, lock_path, remove, replace, replace_bytes, write

__all__ = [
    "FILE_NAME",
    "GPU_FILE_NAMES",
    "VERSION",
    "Entry",
    "Reading",
    "TuningLog",
    "append",
    "bounded",
    "checksum",
    "distance",
    "encode",
    "find",
    "folders",
    "gpu_header",
    "header",
    "lock_path",
    "of_machine",
    "own_gpu_path",
    "own_path",
    "parse",
    "read",
    "refusal",
    "remove",
    "replace",
    "replace_bytes",
    "same_machine",
    "say_once",
    "say_used",
    "stored",
    "stored_gpu",
    "tell",
    "usable",
    "usable_gpu",
    "write",
]
