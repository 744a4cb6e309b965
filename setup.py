"""Packaging of tvm_moonpoly, relax_passes and the tuning logs that ship with them."""

from __future__ import annotations

import re
from pathlib import Path

from setuptools import find_packages, setup

ROOT = Path(__file__).resolve().parent


def version() -> str:
    """Return `__version__`, read as text: an import would need TVM while the package is built."""
    source = (ROOT / "tvm_moonpoly" / "__init__.py").read_text(encoding="utf-8")
    match = re.search(r'^__version__ = "([^"]+)"$', source, re.MULTILINE)
    if match is None:
        raise RuntimeError('tvm_moonpoly/__init__.py has no line `__version__ = "..."`')
    return match.group(1)


CORE = [
    # The passes and schedules use names that change from one TVM release to the next.
    "apache-tvm==0.27.0.post1",
    # TVM alone would take 0.1.15, with which any copy or serialization of its IR crashes.
    "apache-tvm-ffi>=0.1.14.post0,<0.1.15",
    "cloudpickle",
    # Several writers of one tuning log; 3.x is the last for Python 3.10, and has all we use.
    "filelock>=3.16,<5",
    "numpy",
    "onnx",
    "platformdirs",
    "rich",
]

# XGBoost is no part of the core. Compiling a model needs only the integer tables in the tuning
# logs; only the tuning that makes them learns. Its usual wheel pulls a GPU library of about 470 MB,
# the one named -cpu does not; that is not built for macOS, where the usual one is small.
# Release 3: tvm's cost model is written for its interface.
XGBOOST = [
    "xgboost-cpu>=3,<4; sys_platform != 'darwin'",
    "xgboost>=3,<4; sys_platform == 'darwin'",
]

# psutil: tvm's MetaSchedule imports it. scipy: the least squares of learning.
TUNE = ["cloudpickle", "psutil", "scipy", "tornado", *XGBOOST]

# What `make run` needs to build the sentence-embedding model and to check it, and `make run-ocr` to
# write lines of text; since release 10.1 Pillow's own font has any size.
RUN = ["onnxruntime", "pillow>=10.1", "safetensors", "threadpoolctl", "tokenizers"]

# The planner's bench: scipy for its rank correlations, matplotlib for its figure.
PLANNER = ["matplotlib", "scipy", "threadpoolctl"]

# Executing the notebooks of bench/. They replay MetaSchedule's records, which this TVM alone reads
# (CORE pins it); psutil as in TUNE, XGBoost only for MOONPOLY_RETUNE=1.
NOTEBOOKS = [*PLANNER, *RUN, "ipykernel", "nbclient", "nbformat", "psutil", *XGBOOST]

# One torch for all, so that figures of two machines compare. torch is used as a peer only.
BENCH = [*RUN, *PLANNER, "torch==2.13.0"]

TEST = [
    *RUN,
    *NOTEBOOKS,
    "build",
    "hypothesis",
    "ml_dtypes",
    # A new minor release of a checker finds new faults in old code: move these two on purpose.
    "mypy==2.4.*",
    "ruff==0.17.*",
    "pytest",
    # Tests side by side, a process a core.
    "pytest-xdist",
    *TUNE,
    # Builds the package inside the packaging tests, without a download.
    "setuptools>=77",
]

setup(
    name="tvm_moonpoly",
    version=version(),
    description="Dynamic-shape operators for Apache TVM, assembled from tuned micro-kernels",
    long_description=(ROOT / "README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    license_files=["LICENSE", "NOTICE"],
    python_requires=">=3.10,<3.14",
    packages=[
        *find_packages(include=["tvm_moonpoly*", "relax_passes*"]),
        "tvm_moonpoly.tuning_logs",
    ],
    package_dir={"tvm_moonpoly.tuning_logs": "tuning_logs"},
    package_data={
        "tvm_moonpoly": ["py.typed", "operators/cuda/*.cc"],
        "relax_passes": ["py.typed"],
        "tvm_moonpoly.tuning_logs": ["**/*.json", "**/*.jsonl"],
    },
    entry_points={"console_scripts": ["moonpoly = tvm_moonpoly.cli:main"]},
    install_requires=CORE,
    extras_require={
        "tune": TUNE,
        "run": RUN,
        "planner": PLANNER,
        "notebooks": NOTEBOOKS,
        "bench": BENCH,
        "test": TEST,
    },
    zip_safe=False,
)
