"""The command ``moonpoly``: one module a command, loaded when it is called."""

from __future__ import annotations

from tvm_moonpoly.cli.command import main

__all__ = ["main"]
