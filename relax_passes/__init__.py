"""Relax passes of tvm_moonpoly, one file each; `pipeline` lists them in order."""

from .channels_last import ConvertToChannelsLast
from .check_reshapes import CheckReshapes
from .fold_into_convolutions import FoldIntoConvolutions
from .normalize_operators import NormalizeOperators
from .pipeline import pipeline
from .polymerize import PolymerizeDynamicOps
from .polymerize_convolutions import PolymerizeConvolutions
from .report import Entry, Report
from .schedule_memory_bound import ScheduleMemoryBound
from .vector_math import VectorMath

__all__ = [
    "CheckReshapes",
    "ConvertToChannelsLast",
    "Entry",
    "FoldIntoConvolutions",
    "NormalizeOperators",
    "PolymerizeConvolutions",
    "PolymerizeDynamicOps",
    "Report",
    "ScheduleMemoryBound",
    "VectorMath",
    "pipeline",
]
