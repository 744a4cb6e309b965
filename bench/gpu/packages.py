"""What a bundle holds of Python packages: tvm_ffi and what it imports."""

from __future__ import annotations

import platform
import shutil
import subprocess
import sys
import tempfile
import zipfile
from importlib import metadata
from pathlib import Path

#: Of tvm_ffi: what only a compiler needs.
_LEFT_OUT = {
    "3rdparty", "CMakeLists.txt", "__pycache__", "cmake", "cython", "include", "share", "src",
    "stub",
}  # fmt: skip

_PLATFORMS = ("manylinux_2_28_x86_64", "manylinux_2_24_x86_64", "manylinux2014_x86_64")


def collect(folder: Path, python: str) -> None:
    """Put tvm_ffi for ``python`` ("3.12") into ``folder``, of the installed version.

    For this Python the installed package is copied, for another one a wheel is downloaded.

    Raises RuntimeError where pip finds none.
    """
    folder.mkdir(parents=True, exist_ok=True)
    here = metadata.distribution("apache-tvm-ffi")
    extensions = metadata.distribution("typing-extensions")
    shutil.copy2(str(extensions.locate_file("typing_extensions.py")), folder)
    if _minor(python) == _minor(platform.python_version()):
        site = Path(str(here.locate_file("")))
        found = [site / "tvm_ffi", *site.glob("apache_tvm_ffi-*.dist-info")]
        for path in found:
            shutil.copytree(path, folder / path.name, ignore=_ignored)
        return
    with tempfile.TemporaryDirectory() as temporary:
        wheel = _download(here.version, _minor(python), Path(temporary))
        with zipfile.ZipFile(wheel) as file:
            file.extractall(Path(temporary, "unpacked"))
        for path in Path(temporary, "unpacked").iterdir():
            shutil.copytree(path, folder / path.name, ignore=_ignored)


def _download(version: str, python: str, folder: Path) -> Path:
    command = [
        *(sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"),
        *("--only-binary", ":all:", "--python-version", python, "--dest", str(folder)),
        *(word for name in _PLATFORMS for word in ("--platform", name)),
        f"apache-tvm-ffi=={version}",
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    wheels = list(folder.glob("*.whl"))
    if done.returncode or not wheels:
        said = done.stderr.strip().splitlines()
        raise RuntimeError(
            f"--python {python}: pip finds no wheel of apache-tvm-ffi {version} for it: "
            f"{said[-1] if said else 'nothing was said'}"
        )
    return wheels[0]


def _minor(version: str) -> str:
    return ".".join(version.split(".")[:2])


def _ignored(_: str, names: list[str]) -> set[str]:
    return _LEFT_OUT & set(names)
