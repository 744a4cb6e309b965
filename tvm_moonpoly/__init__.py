"""MoonPoly for Apache TVM: dynamic-shape operators assembled from tuned micro-kernels."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from tvm_moonpoly import verbosity

if TYPE_CHECKING:
    from relax_passes.pipeline import pipeline
    from relax_passes.report import Report
    from relax_passes.shape_range import Range
    from tvm_moonpoly.explanation import explain
    from tvm_moonpoly.explanation_conv import explain_conv2d
    from tvm_moonpoly.machine import detect_target
    from tvm_moonpoly.onnx_import import import_onnx

__version__ = "0.1.0"

__all__ = [
    "Range",
    "Report",
    "__version__",
    "detect_target",
    "explain",
    "explain_conv2d",
    "import_onnx",
    "pipeline",
]

verbosity.apply()


#: Looked up when they are first used: relax_passes imports this package, and either may be imported
#: first.
_MODULES = {
    "Range": "relax_passes",
    "Report": "relax_passes",
    "detect_target": "tvm_moonpoly.machine",
    "explain": "tvm_moonpoly.explanation",
    "explain_conv2d": "tvm_moonpoly.explanation_conv",
    "import_onnx": "tvm_moonpoly.onnx_import",
    "pipeline": "relax_passes",
}


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return getattr(importlib.import_module(_MODULES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
