"""MoonPoly for Apache TVM: dynamic-shape operators assembled from tuned micro-kernels."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tvm_moonpoly import verbosity

if TYPE_CHECKING:
    from relax_passes.pipeline import pipeline
    from tvm_moonpoly.explanation import explain
    from tvm_moonpoly.explanation_conv import explain_conv2d
    from tvm_moonpoly.machine import detect_target
    from tvm_moonpoly.onnx_import import import_onnx

__version__ = "0.1.0"

__all__ = ["__version__", "detect_target", "explain", "explain_conv2d", "import_onnx", "pipeline"]

verbosity.apply()


def __getattr__(name: str) -> Any:
    # lazy: relax_passes imports this package, and either may be imported first
    if name == "pipeline":
        from relax_passes import pipeline

        return pipeline
    if name == "detect_target":
        from tvm_moonpoly.machine import detect_target

        return detect_target
    if name == "explain":
        from tvm_moonpoly.explanation import explain

        return explain
    if name == "import_onnx":
        from tvm_moonpoly.onnx_import import import_onnx

        return import_onnx
    if name == "explain_conv2d":
        from tvm_moonpoly.explanation_conv import explain_conv2d

        return explain_conv2d
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
