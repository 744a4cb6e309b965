"""A saved executable runs with TVM's runtime library alone, from Python and from C++."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
CXX = os.environ.get("CXX") or shutil.which("g++") or shutil.which("clang++") or shutil.which("c++")

pytestmark = pytest.mark.skipif(CXX is None, reason="no C++ compiler")


def execute(*command: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(part) for part in command], capture_output=True, text=True, timeout=300, check=False
    )


def succeed(*command: str | Path) -> str:
    result = execute(*command)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The saved executable; its example lies beside it."""
    path = tmp_path_factory.mktemp("export") / "new_folder" / "mlp.so"
    succeed(sys.executable, EXAMPLES / "export_model.py", path)
    return path


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The C++ example, built."""
    path = tmp_path_factory.mktemp("build") / "run_cpp"
    succeed(
        shutil.which("make") or "make",
        "-C",
        EXAMPLES / "run_cpp",
        f"PYTHON={sys.executable}",
        f"OUT={path}",
        f"CXX={CXX}",
    )
    return path


def test_example_is_not_trivial(library: Path) -> None:
    example = np.load(library.with_suffix(".npz"))
    assert example["x"].shape == (300, 64)
    assert example["y"].shape == (300, 10)
    assert np.abs(example["y"]).mean() > 0.1
    np.testing.assert_array_equal(
        np.fromfile(library.with_suffix(".y.f32"), "<f4").reshape(300, 10), example["y"]
    )


def test_python_needs_the_runtime_only(library: Path) -> None:
    output = succeed(sys.executable, EXAMPLES / "run_python.py", library)
    assert output.count("largest error") == 7
    assert output.endswith("OK: neither tvm nor tvm_moonpoly was imported\n")


def test_python_example_notices_wrong_results(library: Path, tmp_path: Path) -> None:
    example = np.load(library.with_suffix(".npz"))
    shutil.copy(library, tmp_path / "mlp.so")
    np.savez(tmp_path / "mlp.npz", x=example["x"], y=example["y"] + np.float32(0.01))
    result = execute(sys.executable, EXAMPLES / "run_python.py", tmp_path / "mlp.so")
    assert result.returncode != 0
    assert "Not equal to tolerance" in result.stderr


def test_cpp_needs_the_runtime_only(library: Path, program: Path) -> None:
    x, y = library.with_suffix(".x.f32"), library.with_suffix(".y.f32")
    output = succeed(program, library, "64", "10", x, y)
    assert output.count("largest error") == 7
    assert output.endswith("OK\n")


def test_cpp_example_notices_wrong_results(library: Path, program: Path, tmp_path: Path) -> None:
    wrong = np.fromfile(library.with_suffix(".y.f32"), "<f4")
    wrong[0] = np.nan
    wrong.tofile(tmp_path / "wrong.f32")
    x = library.with_suffix(".x.f32")
    result = execute(program, library, "64", "10", x, tmp_path / "wrong.f32")
    assert result.returncode != 0
    assert "wrong result" in result.stderr


def test_cpp_example_rejects_bad_arguments(library: Path, program: Path) -> None:
    x, y = library.with_suffix(".x.f32"), library.with_suffix(".y.f32")
    result = execute(program, library, "64", "11", x, y)
    assert result.returncode != 0
    assert "does not hold rows of 11 float32 values" in result.stderr
