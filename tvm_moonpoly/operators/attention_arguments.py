"""What the packed functions of an attention check, and what follows from their arguments."""

from __future__ import annotations

from typing import Any

from tvm import tirx

from tvm_moonpoly.emit import (
    INT,
    INTS,
    Expr,
    Functions,
    Pointer,
    as_int,
    let,
    select,
    when,
)
from tvm_moonpoly.numbers import Numbers
from tvm_moonpoly.operators.attention_constants import ATTRIBUTES, TENSORS, Causal
from tvm_moonpoly.operators.errors import require
from tvm_moonpoly.operators.tensors import Tensor, View

ARGUMENTS = "moonpoly_attention_arguments"

#: What is known of a call once its arguments are checked: attributes, sizes, the strides of batch
#: entries, heads and rows of each operand, of the elements of k, and of the mask.
CALL = (
    *ATTRIBUTES,
    "batch",
    "rows",
    "keys",
    *(f"{tensor}_{stride}" for tensor in (*TENSORS, "mask") for stride in ("b", "h", "s")),
    "k_d",
    "masked",
)

#: The largest count of heads or of elements of a head.
_MOST = 1 << 20


def emit(functions: Functions) -> None:
    """Define `ARGUMENTS`, which writes `CALL`, before any function that calls it. ``mask`` is
    looked at if ``has`` is 1."""
    handles = dict.fromkeys(("q", "k", "v", "mask", "spec", "out"), "handle")

    @functions.fallible(ARGUMENTS, **handles, has=INT, numbers=INTS)
    def _(has: Expr, numbers: Pointer, **given: Any) -> None:
        call = Numbers(CALL, numbers)
        spec = Tensor(given["spec"], "spec", INT)
        spec.require_vector()
        count = len(ATTRIBUTES)
        require(spec.shape[0] == count, "spec", f"must have {count} elements, not #", spec.shape[0])
        for i, name in enumerate(ATTRIBUTES):
            call[name] = spec.data[i]
        for name in ("heads", "kv_heads", "size", "value_size"):
            rule = f"its {name} must be from 1 to {_MOST}, not #"
            require(tirx.all(call[name] >= 1, call[name] <= _MOST), "spec", rule, call[name])
        divides = tirx.truncmod(call["heads"], call["kv_heads"]) == 0
        rule = "its kv_heads must divide its heads: # and #"
        require(divides, "spec", rule, call["kv_heads"], call["heads"])
        known = tirx.all(call["causal"] >= 0, call["causal"] <= int(max(Causal)))
        require(known, "spec", "its causal is no known number: #", call["causal"])

        views = {name: _view(given[name], name, call) for name in TENSORS}
        call["batch"] = views["out"].shape[0]
        call["rows"], call["keys"] = views["q"].shape[2], views["k"].shape[2]
        for name, size, what in (
            ("out", call["rows"], "rows as q"),
            ("v", call["keys"], "rows as k"),
        ):
            own = let(views[name].shape[2])
            require(own == size, name, f"must have as many {what}: # and #", own, size)
        for name in ("q", "k", "v"):
            own = let(views[name].shape[0])
            rule = "its batch must be 1 or that of out: # and #"
            require(tirx.any(own == call["batch"], own == 1), name, rule, own, call["batch"])
        for name in ("q", "k", "v", "out"):
            for stride, dim in (("b", 0), ("h", 1), ("s", 2)):
                call[f"{name}_{stride}"] = views[name].stride[dim]
            with when(call[f"{name}_merged"] > 0):
                size = call["value_size"] if name in ("v", "out") else call["size"]
                call[f"{name}_h"] = size * views[name].stride[3]
        call["k_d"] = views["k"].stride[3]
        # strides that no element depends on may be anything
        with when(call["batch"] * call["rows"] > 0):
            _require_adjacent(views["out"])
            spaced = tirx.any(call["out_s"] >= call["value_size"], call["rows"] <= 1)
            require(spaced, "out", "its elements must not share memory")
        with when(call["batch"] * call["rows"] * call["keys"] > 0):
            _require_adjacent(views["q"])
            _require_adjacent(views["v"])
            either = tirx.any(
                call["k_d"] == 1, call["size"] <= 1, call["k_s"] == 1, call["keys"] <= 1
            )
            require(either, "k", "elements of its rows or of its columns must be adjacent")
        for stride in ("b", "h", "s"):
            call[f"mask_{stride}"] = as_int(0)
        call["masked"] = select(has > 0, 1, 0)
        with when(has > 0):
            _mask(given["mask"], call)


def _view(handle: Expr, name: str, call: Numbers) -> View:
    """The stored tensor ``name`` as (batch, head, row, element); merged heads have no dimension."""
    Tensor(handle, name)
    view = View(handle, name, call[f"{name}_axes"], "spec", as_int(4))
    heads = let(call["kv_heads"] if name in ("k", "v") else call["heads"])
    size = let(call["value_size"] if name in ("v", "out") else call["size"])
    merged = let(call[f"{name}_merged"] > 0)
    own = let(view.shape[1])
    rule = "must have as many heads as its spec says: # and #"
    require(tirx.any(merged, own == heads), name, rule, own, heads)
    needed = let(call[f"{name}_offset"] + select(merged, heads, 1) * size)
    rule = "its rows must have the elements that its spec says: # and at least #"
    fits = tirx.all(call[f"{name}_offset"] >= 0, view.shape[3] >= needed)
    require(fits, name, rule, view.shape[3], needed)
    return view


def _mask(handle: Expr, call: Numbers) -> None:
    """The mask, of which each dimension but the last may be 1."""
    Tensor(handle, "mask")
    view = View(handle, "mask", call["mask_axes"], "spec", as_int(4))
    sizes = {"b": "batch", "h": "heads", "s": "rows"}
    for dim, (stride, name) in enumerate(sizes.items()):
        own, size = let(view.shape[dim]), let(call[name])
        rule = f"its {name} must be 1 or those of the scores: # and #"
        require(tirx.any(own == 1, own == size), "mask", rule, own, size)
        call[f"mask_{stride}"] = view.stride[dim]
    own, keys = let(view.shape[3]), let(call["keys"])
    require(own == keys, "mask", "must have as many columns as k has rows: # and #", own, keys)
    with when(call["batch"] * call["rows"] * keys > 0):
        _require_adjacent(view)


def _require_adjacent(view: View) -> None:
    one = tirx.any(view.stride[3] == 1, view.shape[3] <= 1)
    require(one, view.name, "elements of its rows must be adjacent")
