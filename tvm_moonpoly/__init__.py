"""MoonPoly for Apache TVM: dynamic-shape operators assembled from tuned micro-kernels."""

__version__ = "0.1.0"
