"""Relax passes of tvm_moonpoly, one file each; `pipeline` lists them in order."""

from .check_reshapes import CheckReshapes
from .pipeline import pipeline
from .polymerize import PolymerizeDynamicOps
from .report import Entry, Report
from .schedule_memory_bound import ScheduleMemoryBound

__all__ = [
    "CheckReshapes",
    "Entry",
    "PolymerizeDynamicOps",
    "Report",
    "ScheduleMemoryBound",
    "pipeline",
]
