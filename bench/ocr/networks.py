"""The two networks, compiled once each for lines of any width, however many at once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import tvm

from bench.engines import ORT, OURS, Engine, as_arrays, run_onnxruntime, run_tvm
from bench.ocr.decoding import Reading, alphabet, decode
from bench.ocr.fetch import CLASSIFIER, RECOGNISER
from bench.ocr.lines import HEIGHT

#: What the networks call their input, and its dimensions: the height is what they are made for.
INPUT = "x"
DIMS = {"x:0": "lines", "x:2": HEIGHT, "x:3": "width"}
NAMES = {"recogniser": RECOGNISER, "classifier": CLASSIFIER}


@dataclass(frozen=True)
class Network:
    """A network in two engines, and what its outputs say."""

    name: str
    engines: dict[str, Engine]
    interpret: Callable[[np.ndarray], list[Reading]]

    def run(self, engine: str, lines: np.ndarray) -> np.ndarray:
        """The network's output for lines (number, 3, 48, width)."""
        (result,) = as_arrays(self.engines[engine].prepare({INPUT: lines})())
        return result


def module_of(path: Path) -> tvm.IRModule:
    """The Relax module of a network, its number of lines and their width symbolic."""
    import tvm_moonpoly as mp

    return mp.import_onnx(path, DIMS)


def build(
    name: str, folder: Path, target: tvm.target.Target, threads: int, report: Any = None
) -> Network:
    """Compile the network ``name`` of a folder with the networks, and open it in onnxruntime."""
    import tvm_moonpoly as mp

    path = folder / NAMES[name]
    model = onnx.load(path)
    ours = run_tvm(OURS, module_of(path), target, mp.pipeline(target, report=report), [INPUT])
    engines = {OURS: ours, ORT: run_onnxruntime(model, threads)}
    if name == "classifier":
        return Network(name, engines, directions)
    characters = alphabet(model)
    return Network(name, engines, lambda scores: decode(scores, characters))


def directions(scores: np.ndarray) -> list[Reading]:
    """Whether lines are upright or upside down, from probabilities (lines, 2)."""
    words = ("upright", "upside down")
    return [Reading(words[each.argmax()], float(each.max())) for each in scores]
