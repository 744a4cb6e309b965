"""Wheel and editable installs, each imported in a clean environment, away from the checkout.

Nothing is downloaded. The package is built with the setuptools of the running environment, and a
fresh virtual environment without pip gets it from there. Dependencies come from a folder of links
to what the running environment has installed, without this package, so that the copy under test is
the only one that can be found.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import build
import pyproject_hooks  # a dependency of build
import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("tvm_moonpoly", "relax_passes", "tuning_logs")
OURS = ("tvm_moonpoly", "relax_passes", "__editable__")

pytestmark = [
    # setuptools warns of source folders that hide an editable install: we run away from them.
    pytest.mark.filterwarnings("ignore:Editable installation"),
    # The archive unpacked here is our own; early 3.10 and 3.11 know no `filter`.
    pytest.mark.filterwarnings("ignore:Python 3.14 will, by default, filter"),
]

# Prints what one fresh process finds: origin of each import, version and packaged log files.
REPORT = """
import importlib, importlib.metadata, importlib.resources, json, sys
def files(folder, prefix=""):
    for entry in folder.iterdir():
        if entry.is_dir():
            yield from files(entry, prefix + entry.name + "/")
        elif entry.name.endswith((".json", ".jsonl")):
            yield prefix + entry.name, entry.read_text(encoding="utf-8")
modules = {name: importlib.import_module(name).__file__ for name in sys.argv[1:]}
import tvm_moonpoly
print(json.dumps({
    "modules": modules,
    "version": tvm_moonpoly.__version__,
    "metadata": importlib.metadata.version("tvm_moonpoly"),
    "logs": dict(files(importlib.resources.files("tvm_moonpoly.tuning_logs"))),
}))
"""


def log_files(folder: Path) -> dict[str, str]:
    return {
        path.relative_to(folder).as_posix(): path.read_text(encoding="utf-8")
        for path in folder.rglob("*.json*")
    }


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of what is packaged: building writes into its folder, and the checkout stays as is."""
    root = tmp_path_factory.mktemp("source")
    for name in PACKAGES:
        shutil.copytree(ROOT / name, root / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("setup.py", "pyproject.toml", "README.md", "LICENSE", "NOTICE"):
        shutil.copy(ROOT / name, root / name)
    # A folder whose name is no identifier, like those of real machines, and both kinds of file.
    machine = root / "tuning_logs" / "a-machine" / "nested"
    machine.mkdir(parents=True)
    (machine / "records.jsonl").write_text('{"kernel": 1}\n', encoding="utf-8")
    (machine / "model.json").write_text("{}", encoding="utf-8")
    return root


@pytest.fixture(scope="module")
def dependencies(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Links to all that the running environment has installed, but for this package."""
    folder = tmp_path_factory.mktemp("dependencies")
    for kind in {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}:
        for entry in Path(kind).iterdir():
            if not entry.name.startswith(OURS) and not (folder / entry.name).exists():
                (folder / entry.name).symlink_to(entry)
    return folder


def build_distribution(source: Path, kind: str, output: Path) -> Path:
    """Build a "wheel", an "sdist" or an "editable": the wheel that `pip install -e` installs."""
    builder = build.ProjectBuilder(source, runner=pyproject_hooks.quiet_subprocess_runner)
    return Path(builder.build(kind, output))


@pytest.fixture(scope="module", params=["wheel", "editable"])
def environment(
    request: pytest.FixtureRequest,
    source: Path,
    dependencies: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> tuple[str, Path]:
    """How the package was installed, and the Python that it was installed for."""
    output = tmp_path_factory.mktemp(request.param)
    if request.param == "wheel":  # from the source distribution, as a package index serves it
        sdist = build_distribution(source, "sdist", output)
        shutil.unpack_archive(sdist, output)
        source = output / sdist.name.removesuffix(".tar.gz")
    wheel = build_distribution(source, request.param, output)
    venv.create(output / "venv", with_pip=False, symlinks=True)
    python = output / "venv" / "bin" / "python"
    install = [sys.executable, "-m", "pip", "--python", python, "install", "--no-deps", wheel]
    subprocess.run([*install, "--no-index", "--quiet"], check=True)
    site_packages = next((output / "venv" / "lib").glob("python*/site-packages"))
    (site_packages / "dependencies.pth").write_text(f"{dependencies}\n", encoding="utf-8")
    return request.param, python


@pytest.mark.parametrize(
    "order",
    [
        ("tvm_moonpoly", "relax_passes", "tvm_moonpoly.tuning_logs"),
        ("relax_passes", "tvm_moonpoly.tuning_logs", "tvm_moonpoly"),
        ("tvm_moonpoly.tuning_logs", "tvm_moonpoly", "relax_passes"),
    ],
    ids=lambda order: order[0],
)
def test_installed_package(
    environment: tuple[str, Path], source: Path, tmp_path: Path, order: tuple[str, ...]
) -> None:
    kind, python = environment
    output = subprocess.check_output([python, "-c", REPORT, *order], cwd=tmp_path, text=True)
    found = json.loads(output.splitlines()[-1])

    home = source if kind == "editable" else python.parents[1]
    assert all(Path(file).is_relative_to(home) for file in found["modules"].values()), found
    assert found["version"] == found["metadata"]
    expected = log_files(source / "tuning_logs")
    assert "a-machine/nested/records.jsonl" in expected
    assert found["logs"] == expected


def test_installed_command(environment: tuple[str, Path], tmp_path: Path) -> None:
    """The console script, and what is said of that which is not installed."""
    kind, python = environment
    moonpoly = python.with_name("moonpoly")
    text = subprocess.check_output([moonpoly, "--version"], cwd=tmp_path, text=True)
    assert text.startswith("moonpoly ")
    bench = subprocess.run(
        [moonpoly, "bench", "gemm"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    # the source here is a copy of the packages alone, so neither kind has benchmarks
    assert bench.returncode == 1, kind
    assert bench.stderr.startswith("error: the benchmarks are part of the repository")


def test_wheel_holds_the_packages_only(source: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(build_distribution(source, "wheel", tmp_path)) as wheel:
        names = wheel.namelist()
        metadata = wheel.read(next(n for n in names if n.endswith("/METADATA"))).decode()
    tops = {name.split("/")[0] for name in names if ".dist-info/" not in name}
    assert tops == {"tvm_moonpoly", "relax_passes"}
    modules = {path.relative_to(ROOT).as_posix() for path in (ROOT / "tvm_moonpoly").rglob("*.py")}
    assert modules <= set(names)
    assert {"tvm_moonpoly/py.typed", "tvm_moonpoly/tuning_logs/__init__.py"} <= set(names)
    assert any(name.endswith("/LICENSE") for name in names)
    assert any(name.endswith("/NOTICE") for name in names)
    required = [line for line in metadata.splitlines() if line.startswith("Requires-Dist")]
    core = [line for line in required if "extra ==" not in line]
    assert "Requires-Dist: apache-tvm==0.27.0.post1" in core
    assert not [line for line in core if "xgboost" in line or "torch" in line]
    tune = [line for line in required if "xgboost" in line and "tune" in line]
    assert any(re.search(r"xgboost-cpu\S*>=3.* != .darwin", line) for line in tune), tune
