"""What every notebook does first: one thread, and a line about the machine."""

from __future__ import annotations

import os
from typing import Any

from bench.gemm.environment import fair_environment


def one_thread() -> None:
    """Make every library use one thread. To be called before any of them is imported."""
    fair = fair_environment(os.environ, 1)
    for name in set(os.environ) - set(fair):
        del os.environ[name]
    os.environ.update(fair)


def facts(target: Any = None) -> None:
    """Print the processor, its caches, the versions, and what code is made for."""
    from bench import measure

    found = measure.machine_facts()
    caches = ", ".join(f"{level} {size}" for level, size in found["caches"].items())
    print(f"{found['cpu']}, {found['cores']} cores seen, {caches}")
    print(", ".join(f"{name} {version}" for name, version in found["versions"].items()))
    if target is not None:
        print(f"compiled for {target.attrs['mcpu']}; {measure.clock_for(1)[1]}")
