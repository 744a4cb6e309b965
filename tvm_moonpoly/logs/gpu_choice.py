"""Which log serves a GPU: its own before another's of its compute capability."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence

from tvm_moonpoly.logs import places
from tvm_moonpoly.logs.choice import say_once
from tvm_moonpoly.logs.document import TuningLog


def usable_gpu(arch: str, names: Sequence[str], dtype: str) -> Iterator[TuningLog]:
    """The logs for operands of ``dtype`` on a GPU of ``arch`` that is one of ``names``, the
    likeliest first: best first.

    Its own are in the order of the places, `places.stored_gpu`; then those of the other names, and
    then those of GPUs that are not named.
    """
    found = []
    for origin, reading in places.stored_gpu(dtype):
        log = reading.log
        if log is None:
            continue
        if log.instructions != arch:
            say_once(logging.DEBUG, f"{origin}: skipped, it is for {log.instructions}, not {arch}")
            continue
        found.append(log)

    def rank(log: TuningLog) -> int:
        name = log.machine_name
        return names.index(name) if name in names else len(names)

    yield from sorted(found, key=rank)
