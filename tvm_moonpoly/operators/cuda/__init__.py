"""Operators for CUDA: packed functions of the host that plan and launch micro-kernels.

From a tuning log to the micro-kernels of an operator: `assemblies`, `assembly`. Its packed
function: `matmul`, which takes tensors as they lie, and `by_axes`, which takes their dimensions in
any order. Both see them as `matrices` (`walk` finds those of `by_axes`) and end in `launches`. All
operators of a model, compiled and cached: `library`, with `machine_code` and `device_modules` for
the kernels.
"""

from tvm_moonpoly.operators.cuda.assembly import Assembly, Operator
from tvm_moonpoly.operators.cuda.matmul import build

__all__ = ["Assembly", "Operator", "build"]
