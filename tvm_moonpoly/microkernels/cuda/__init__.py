"""Tensor-core micro-kernels for matrix products on NVIDIA GPUs.

fp16 or bf16 operands, float32 accumulators; any M, N, K. Everything here works without a GPU, and
all but `resources`, `cubin`, `ptx` and `sass` without a CUDA toolkit.
"""

from tvm_moonpoly.microkernels.cuda.candidates import candidates, registers_estimate, space
from tvm_moonpoly.microkernels.cuda.cubin_resources import resources_of
from tvm_moonpoly.microkernels.cuda.form import ACTIVATIONS, Epilogue, Form
from tvm_moonpoly.microkernels.cuda.gpus import (
    ARCHITECTURES,
    GPUS,
    Architecture,
    Gpu,
    architecture,
    detected,
    is_named,
    products,
)
from tvm_moonpoly.microkernels.cuda.kernel import COMMON_SHARED_BYTES, build, kernel_name
from tvm_moonpoly.microkernels.cuda.lowering import cuda_source, host_module, lower, lower_parts
from tvm_moonpoly.microkernels.cuda.occupancy import Occupancy, occupancy
from tvm_moonpoly.microkernels.cuda.raster import position
from tvm_moonpoly.microkernels.cuda.resources import (
    Resources,
    cubin,
    find_nvcc,
    find_nvdisasm,
    ptx,
    resources,
    sass,
)
from tvm_moonpoly.microkernels.cuda.tile import (
    EPILOGUE_PATHS,
    MAX_BATCH,
    MAX_OPERAND_ELEMENTS,
    CudaTile,
    Requirements,
    requirements,
    shared_bytes,
)

__all__ = [
    "ACTIVATIONS",
    "ARCHITECTURES",
    "COMMON_SHARED_BYTES",
    "EPILOGUE_PATHS",
    "GPUS",
    "MAX_BATCH",
    "MAX_OPERAND_ELEMENTS",
    "Architecture",
    "CudaTile",
    "Epilogue",
    "Form",
    "Gpu",
    "Occupancy",
    "Requirements",
    "Resources",
    "architecture",
    "build",
    "candidates",
    "cubin",
    "cuda_source",
    "detected",
    "find_nvcc",
    "find_nvdisasm",
    "host_module",
    "is_named",
    "kernel_name",
    "lower",
    "lower_parts",
    "occupancy",
    "position",
    "products",
    "ptx",
    "registers_estimate",
    "requirements",
    "resources",
    "resources_of",
    "sass",
    "shared_bytes",
    "space",
]
