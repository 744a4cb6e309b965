"""The passes for NVIDIA GPUs: products of half-precision tensors, and machine code for the rest."""

from .kernels import CompileKernels
from .rewrite import polymerize

__all__ = ["CompileKernels", "polymerize"]
