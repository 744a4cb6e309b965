"""One line of a log: a JSON object with a checksum of its other fields.

What is read may come from anybody, so it is refused unless it is plain, bounded data: nothing of
Python's extensions to JSON, no field named twice, no number beyond 64 bits, no deep nesting, no
characters that a terminal would obey. What is written has to pass the same checks.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from typing import Any

Entry = Mapping[str, Any]

#: Bytes of one line; a trace of MetaSchedule takes some thousand.
MAX_LINE = 1 << 20

#: Containers within containers.
MAX_DEPTH = 32

_CHECKSUM = "sum"
_DIGITS = len(str(1 << 63))


def checksum(entry: Entry) -> str:
    """A short digest of an entry's fields: it tells damage, not who wrote the line."""
    text = json.dumps(entry, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def encode(entry: Entry) -> bytes:
    """The line of ``entry``, with its end; raises ValueError when `decode` would refuse it."""
    if _CHECKSUM in entry:
        raise ValueError(f"entry: {_CHECKSUM!r} is the checksum's name")
    try:
        line = json.dumps({**entry, _CHECKSUM: checksum(entry)}, sort_keys=True, allow_nan=False)
    except (TypeError, RecursionError) as error:
        raise ValueError(f"entry: {error}") from error
    data = line.encode()
    decode(data)
    return data + b"\n"


def decode(data: bytes) -> dict[str, Any]:
    """The entry of a line; raises ValueError, with the reason, for anything that is none."""
    if len(data) > MAX_LINE:
        raise ValueError(f"it is longer than {MAX_LINE} bytes")
    try:
        entry = json.loads(
            data.decode("utf-8"),
            object_pairs_hook=_fields,
            parse_int=_integer,
            parse_float=_number,
            parse_constant=_constant,
        )
    except RecursionError:
        raise ValueError(f"it is nested deeper than {MAX_DEPTH}") from None
    except UnicodeDecodeError:
        raise ValueError("it is not UTF-8") from None
    except json.JSONDecodeError as error:
        raise ValueError(f"it is not JSON: {error}") from None
    if not isinstance(entry, dict):
        raise ValueError("it is no JSON object")
    _check(entry)
    if entry.pop(_CHECKSUM, None) != checksum(entry):
        raise ValueError("its checksum does not match")
    return entry


def _fields(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("it names a field twice")
    return found


def _integer(text: str) -> int:
    # the length first: Python reads long numbers in quadratic time
    if len(text) > _DIGITS + 1 or not -(1 << 63) <= int(text) < 1 << 63:
        raise ValueError("it holds a whole number beyond 64 bits")
    return int(text)


def _number(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError("it holds a number beyond all bounds")
    return value


def _constant(text: str) -> float:
    raise ValueError(f"it holds {text}, which is no JSON")


def _check(entry: dict[str, Any]) -> None:
    """Depth and texts, without recursion."""
    pending: list[tuple[Any, int]] = [(entry, 1)]
    while pending:
        value, depth = pending.pop()
        if isinstance(value, str):
            if not value.replace("\n", " ").replace("\t", " ").isprintable():
                raise ValueError("it holds characters that do not print")
        elif isinstance(value, (dict, list)):
            if depth > MAX_DEPTH:
                raise ValueError(f"it is nested deeper than {MAX_DEPTH}")
            inner = [*value, *value.values()] if isinstance(value, dict) else value
            pending += [(each, depth + 1) for each in inner]
