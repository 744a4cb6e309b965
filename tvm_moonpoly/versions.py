"""Version numbers, compared without importing what they are of."""

from __future__ import annotations

import re
from importlib import metadata

#: From here on, each copy or serialization of TVM's IR crashes.
FFI_CRASHES_FROM = (0, 1, 15)


def release(version: str) -> tuple[int, ...]:
    """The leading numbers of a version: (0, 27, 0) of 0.27.0.post1."""
    return tuple(int(part) for part in re.findall(r"\d+", re.split(r"[^\d.]", version)[0]))


def installed(distribution: str) -> str | None:
    """The version of an installed distribution; None when it is not there."""
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def ffi_warning(version: str | None) -> str | None:
    """What is wrong with this ``version`` of apache-tvm-ffi; None when nothing is."""
    if version is None or release(version) < FFI_CRASHES_FROM:
        return None
    return (
        f"apache-tvm-ffi {version} crashes when TVM copies or saves its programs: "
        "pip install 'apache-tvm-ffi>=0.1.14.post0,<0.1.15'"
    )
