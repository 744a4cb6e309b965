"""``MOONPOLY_LOG``: how much the logger ``tvm_moonpoly`` says."""

from __future__ import annotations

import logging
import os

VARIABLE = "MOONPOLY_LOG"

LEVELS = {"info": logging.INFO, "debug": logging.DEBUG}

_logger = logging.getLogger("tvm_moonpoly")


def level() -> int | None:
    """The level that ``MOONPOLY_LOG`` asks for; None when it does not, or not for one we know."""
    return LEVELS.get(os.environ.get(VARIABLE, "").strip().lower())


def apply() -> None:
    """Set the logger's level, and let it print to stderr in programs that configure no logging."""
    wanted = level()
    if wanted is None:
        if value := os.environ.get(VARIABLE):
            _logger.warning("%s must be info or debug, not %r", VARIABLE, value)
        return
    _logger.setLevel(wanted)
    if not any(isinstance(handler, _Fallback) for handler in _logger.handlers):
        _logger.addHandler(_Fallback())


class _Fallback(logging.StreamHandler):
    """Prints to stderr what no other handler will: none of the root logger or of ours."""

    def __init__(self) -> None:
        super().__init__()
        self.setFormatter(logging.Formatter("moonpoly: %(message)s"))

    def emit(self, record: logging.LogRecord) -> None:
        if not logging.getLogger().handlers and _logger.handlers == [self]:
            super().emit(record)
