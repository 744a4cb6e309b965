"""Finds attention that an ONNX graph spells out: a product, a scale, a mask, Softmax, a product."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import onnx


@dataclass(frozen=True)
class Attention:
    """``softmax(query @ turned * scale + mask) @ value``, by names; the softmax is over ``axis``,
    which is the last one where this is attention. A ``mask`` that there is not is empty."""

    query: str
    turned: str
    value: str
    mask: str
    scale: float
    axis: int
    result: str

    @property
    def operands(self) -> tuple[str, ...]:
        return self.query, self.turned, self.value, self.mask


def find_attention(
    graph: onnx.GraphProto, constants: Mapping[str, np.ndarray]
) -> dict[str, Attention]:
    """All of it by the name of its result, where nothing else uses what is between."""
    makers = {name: node for node in graph.node for name in node.output}
    uses = Counter(name for node in graph.node for name in node.input)
    uses.update(each.name for each in graph.output)

    def maker(name: str, *kinds: str) -> onnx.NodeProto | None:
        node = makers.get(name)
        return node if node is not None and node.op_type in kinds and uses[name] == 1 else None

    def matched(node: onnx.NodeProto) -> Attention | None:
        softmax = maker(node.input[0], "Softmax")
        if softmax is None:
            return None
        axis = next((each.i for each in softmax.attribute if each.name == "axis"), -1)
        scores, mask, scale = softmax.input[0], "", 1.0
        added = maker(scores, "Add")
        if added is not None:
            scores, mask = added.input
        scaled = maker(scores, "Mul", "Div")
        if scaled is not None:
            factor = constants.get(scaled.input[1])
            if factor is None or factor.size != 1:
                return None
            scores = scaled.input[0]
            scale = float(factor.item())
            scale = 1 / scale if scaled.op_type == "Div" else scale
        product = maker(scores, "MatMul")
        if product is None:
            return None
        query, turned = product.input
        return Attention(query, turned, node.input[1], mask, scale, axis, node.output[0])

    found = {}
    for node in graph.node:
        if node.op_type == "MatMul":
            one = matched(node)
            if one is not None:
                found[one.result] = one
    return found
