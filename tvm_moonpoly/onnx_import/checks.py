"""Checks of sizes at the call."""

from __future__ import annotations

from tvm import relax, tirx

from relax_passes.run_time_checks import assert_equal, emit_kept

from .dims import Range


def emit_range_check(builder: relax.BlockBuilder, size: tirx.Var, promised: Range) -> None:
    """Emit a check that raises RuntimeError where `size` is outside of the range `promised`."""
    low, high = (tirx.const(each, "int64") for each in (promised.smallest, promised.largest))
    text = (
        f"main: the dimension {size.name} must be between {promised.smallest} and "
        f"{promised.largest};"
    )
    emit_kept(builder, assert_equal(tirx.max(low, tirx.min(size, high)), size, text))
