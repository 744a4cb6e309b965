"""Relax passes of tvm_moonpoly, one file each; `pipeline` lists them in order."""

from .attention import FuseAttention
from .channels_last import ConvertToChannelsLast
from .check_operands import CheckOperands
from .check_reshapes import CheckReshapes
from .fold_into_convolutions import FoldIntoConvolutions
from .join_norms import JoinNorms
from .keep_nan import KeepNaN
from .map_weights import MapWeights
from .merge_products import MergeProducts
from .normalize_operators import NormalizeOperators
from .pipeline import pipeline
from .polymerize import PolymerizeDynamicOps
from .polymerize_convolutions import PolymerizeConvolutions
from .report import Entry, Report
from .schedule_memory_bound import ScheduleMemoryBound
from .search_rows import SearchRows
from .shape_facts import ShapeFacts, facts
from .shape_facts_prim import TellPrimFuncs
from .shape_promises import PromiseShapes
from .shape_range import Range
from .sink_reshapes import SinkReshapes
from .vector_math import VectorMath
from .view_reshapes import LegalizeAroundViews

__all__ = [
    "CheckOperands",
    "CheckReshapes",
    "ConvertToChannelsLast",
    "Entry",
    "FoldIntoConvolutions",
    "FuseAttention",
    "LegalizeAroundViews",
    "MapWeights",
    "MergeProducts",
    "JoinNorms",
    "KeepNaN",
    "NormalizeOperators",
    "PolymerizeConvolutions",
    "PolymerizeDynamicOps",
    "PromiseShapes",
    "Range",
    "Report",
    "ScheduleMemoryBound",
    "SearchRows",
    "ShapeFacts",
    "SinkReshapes",
    "TellPrimFuncs",
    "VectorMath",
    "facts",
    "pipeline",
]
