"""ONNX models as exporters write them, imported with their dynamic dimensions."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tvm_moonpoly.arguments import by_name, require

from .errors import OnnxImportError, Problem

if TYPE_CHECKING:
    import onnx
    import tvm

__all__ = ["OnnxImportError", "Problem", "import_onnx"]


def import_onnx(
    model: str | os.PathLike[str] | onnx.ModelProto,
    dims: Mapping[str, Any] | None = None,
) -> tvm.IRModule:
    """The Relax module of an ONNX model, its dynamic dimensions symbolic.

    `model` is a file, whose weights may lie in files beside it, or a model in memory, which is not
    changed. The module's function `main` takes the model's inputs in their order, without those
    that have a value in the model; weights are its constants.

    `dims` says more about dimensions of inputs. A key is the name of a dimension, or `INPUT:AXIS`
    for one of them (`"x:0"`); those without a name are also called `INPUT_AXIS`. A value is

    * a number from 1 on: the dimension has this size,
    * a name: the dimension is called so; those of one name are of one size,
    * a `Range`, or two numbers, the smallest and the largest size: a call with another size raises
      an error. What is promised is written into the function's attributes for all passes.

    An input of unknown rank gets the rank of its keys: `{"x:0": "n", "x:1": 3}`.

    What is computed from shapes stays symbolic: targets of Reshape, Expand, Tile and Slice, pads,
    scales and sizes of Resize, `auto_pad`. A size that depends on data is a new variable.

    Raises OnnxImportError, which names node, operator and reason, where a model cannot be
    imported; ValueError where `dims` does not fit it; OSError where a file cannot be read.
    """
    import onnx

    from .load import load

    known = isinstance(model, str | os.PathLike | onnx.ModelProto)
    require(known, "model", "a path or an onnx.ModelProto", type(model))
    return load(model, by_name("dims", dims)).module
