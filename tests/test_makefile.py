"""The targets of the Makefile, and what it says on a machine that lacks something."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
MAKE = shutil.which("make")

pytestmark = pytest.mark.skipif(MAKE is None, reason="no make")


def make(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run make from the root, without the variables of a make that runs these tests."""
    inherited = {
        name: value
        for name, value in os.environ.items()
        if name not in {"CXX", "MAKEFLAGS", "MAKELEVEL", "MFLAGS", "PYTHON", "VENV", "ARGS"}
    }
    return subprocess.run(
        [str(MAKE), "--no-print-directory", *arguments],
        cwd=ROOT,
        env=inherited | environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.fixture
def tools(tmp_path: Path) -> Path:
    """A folder for PATH that holds a shell and no compiler."""
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "sh").symlink_to(shutil.which("sh") or "/bin/sh")
    return folder


def executable(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    path.chmod(0o755)
    return path


@pytest.mark.parametrize("arguments", [(), ("help",)], ids=["default", "help"])
def test_help_lists_every_target(arguments: tuple[str, ...]) -> None:
    result = make(*arguments)
    assert result.returncode == 0, result.stderr
    targets = "help run test lint fuzz tune-cpu bench-gemm bench-planner bench-instructions"
    gpus = ["tune-a100", "tune-h100", "tune-h200", "tune-rtx4090", "tune-rtx3090", "gpu-logs"]
    for name in [*targets.split(), *gpus, "test-emulator", "gpu-bundle", "notebooks", "clean"]:
        assert f"make {name} " in result.stdout


@pytest.mark.parametrize(
    "name",
    [
        "run",
        "test",
        "fuzz",
        "tune-cpu",
        "tune-a100",
        "bench-gemm",
        "bench-planner",
        "bench-instructions",
        "gpu-bundle",
        "notebooks",
    ],
)
def test_missing_compiler_is_one_early_sentence(name: str, tools: Path, tmp_path: Path) -> None:
    result = make(name, f"VENV={tmp_path / 'venv'}", PATH=str(tools))
    assert result.returncode != 0
    said = [line for line in result.stderr.splitlines() if not line.startswith("make")]
    assert len(said) == 1
    assert said[0].startswith("error: no C++ compiler found")
    assert "apt-get install g++" in said[0]
    assert not (tmp_path / "venv").exists()


def test_tuning_a_gpu_names_it() -> None:
    command = make("-n", "tune-rtx4090", "DRY_RUN=1", "ARGS=--count 4").stdout.splitlines()[-1]
    assert command.split()[1:] == ["tune", "--gpu", "nvidia-rtx4090", "--dry-run", "--count", "4"]
    for no in ((), ("DRY_RUN=",), ("DRY_RUN=0",)):
        assert "--dry-run" not in make("-n", "tune-a100", *no).stdout
    bundle = make("-n", "gpu-bundle", "GPU=nvidia-a100", "ARGS=--python 3.12").stdout
    assert bundle.splitlines()[-1].split()[1:] == [
        "-m", "bench.gpu", "--gpu", "nvidia-a100", "--python", "3.12"
    ]  # fmt: skip


def test_compiler_in_cxx_must_exist(tools: Path) -> None:
    assert make("need-compiler", PATH=str(tools), CXX="nowhere++").returncode != 0
    compiler = executable(tools / "mine++", "#!/bin/sh\n")
    assert make("need-compiler", PATH=str(tools), CXX=str(compiler)).returncode == 0


@pytest.mark.parametrize("name", ["g++", "clang++", "c++"])
def test_any_usual_compiler_will_do(name: str, tools: Path) -> None:
    executable(tools / name, "#!/bin/sh\n")
    result = make("need-compiler", PATH=str(tools))
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize(
    ("script", "complaint"),
    [
        ("#!/bin/sh\necho 3.9\n", "is Python 3.9, but Python 3.10 to 3.13 is needed"),
        ("#!/bin/sh\necho 3.14\n", "is Python 3.14, but Python 3.10 to 3.13 is needed"),
        ("#!/bin/sh\nexit 127\n", "does not run"),
        (
            '#!/bin/sh\ncase "$2" in *ensurepip*) exit 1 ;; esac\necho 3.12\n',
            "cannot make virtual environments",
        ),
    ],
    ids=["old", "new", "broken", "no venv"],
)
def test_unfit_python_is_one_early_sentence(script: str, complaint: str, tmp_path: Path) -> None:
    python = executable(tmp_path / "python", script)
    result = make("run", f"PYTHON={python}", f"VENV={tmp_path / 'venv'}", CXX=sys.executable)
    assert result.returncode != 0
    said = [line for line in result.stderr.splitlines() if not line.startswith("make")]
    assert len(said) == 1
    assert complaint in said[0]
    assert not (tmp_path / "venv").exists()


def test_second_run_installs_nothing_and_a_changed_setup_does(tmp_path: Path) -> None:
    """Dry runs over stamps: an up-to-date environment leaves only the command itself."""
    environment = tmp_path / "venv"
    environment.mkdir()
    newest = max((ROOT / name).stat().st_mtime for name in ("setup.py", "pyproject.toml"))
    for age, name in ((1, ".created"), (2, ".installed-run")):
        (environment / name).touch()
        os.utime(environment / name, (newest + age, newest + age))
    assert "pip install" not in make("--dry-run", "run", f"VENV={environment}").stdout
    assert "pip install" in make("--dry-run", "test", f"VENV={environment}").stdout
    assert "pip install" in make("--dry-run", "-W", "setup.py", "run", f"VENV={environment}").stdout


def test_clean_spares_a_folder_that_is_no_environment(tmp_path: Path) -> None:
    """VENV may be mistyped: only what `python -m venv` made is removed."""
    (tmp_path / "precious").touch()
    recipe = make("--dry-run", "clean", f"VENV={tmp_path}").stdout
    guard = next(line for line in recipe.splitlines() if "pyvenv.cfg" in line)
    subprocess.run(["sh", "-c", guard], check=True)
    assert (tmp_path / "precious").exists()
    (tmp_path / "pyvenv.cfg").touch()
    subprocess.run(["sh", "-c", guard], check=True)
    assert not tmp_path.exists()
