"""Operators for CUDA: packed functions of the host that plan and launch micro-kernels."""

from tvm_moonpoly.operators.cuda.matmul import Assembly, build

__all__ = ["Assembly", "build"]
