"""TVM's importer of ONNX graphs, told what is known of shapes."""

from __future__ import annotations

import contextlib
import io
import re
import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
import tvm
from onnx import numpy_helper
from tvm import relax, tirx
from tvm.ir import GenericConst
from tvm.relax import Expr
from tvm.relax.frontend.onnx.onnx_frontend import ONNXGraphImporter

from . import fold, operand_rules, shape_operators
from .dims import Shapes
from .errors import OnnxImportError, Problem, Unsupported
from .known import MOST_ELEMENTS, Known
from .materialize import materialized
from .model import Opened, constant_value
from .prepare import DEFAULT_DOMAINS, label, operator_name
from .symbolic import Size, Sizes, constant


class Importer(ONNXGraphImporter):
    """TVM's importer, which converts the nodes of a graph in turn; before each of them come

    * constants: what has constant operands is computed at once (by ONNX's reference),
    * shapes: tensors that hold sizes are kept as such (`known`),
    * the conversions of `CONVERSIONS`, for operators that TVM's cannot import with symbolic shapes.

    Everything else is TVM's, and so is the result's form. Where it loses the sizes of a result,
    these become new variables, read from the result.
    """

    def __init__(self, opened: Opened, shapes: Shapes) -> None:
        super().__init__({name: [*shape] for name, shape in shapes.shapes.items()}, None)
        self._nodes: dict[str, Any]
        self.opened = opened
        self.sizes = Sizes()
        self.known: dict[str, Known] = {}
        self._free: set[tirx.Var] = set()
        for shape in shapes.shapes.values():
            self.sizes.declare(shape, shapes.ranges)
            self._free |= {size for size in shape if isinstance(size, tirx.Var)}

    def convert(self, graph: onnx.GraphProto, opset: int) -> tvm.IRModule:
        """The module of `graph`. Raises OnnxImportError for the first node that fails."""
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            # TVM's importer prints what it fails on, and warns that x.1 becomes x_1
            warnings.filterwarnings("ignore", message="Renaming name")
            try:
                mod = self.from_onnx(graph, opset)
            except Exception:
                _abandon(self.bb)
                raise
        if any(node.op_type == "If" for node in graph.node):
            mod = relax.transform.ConvertToDataflow()(mod)  # TVM's builds none around an If
        return relax.transform.DeadCodeElimination()(mod)

    # What the conversions use

    def tensor(self, name: str) -> Expr:
        """The value `name` as a tensor."""
        if name not in self._nodes:
            self._nodes[name] = materialized(self.bb, self.known[name])
        return self._nodes[name]

    def known_value(self, name: str) -> Known | None:
        """The value `name` by its elements, if they are known."""
        if name and name not in self.known:
            found = self._nodes.get(name)
            if isinstance(found, GenericConst):
                array = found.value.numpy()
                if array.size <= MOST_ELEMENTS and array.dtype.kind in "iufb":
                    self.known[name] = Known.of(array, array.dtype.name)
        return self.known.get(name)

    def shape(self, tensor: Expr) -> list[Size] | None:
        """The sizes of a tensor, or None where they are not known."""
        ty = tensor.ty
        if not isinstance(ty, relax.TensorType) or not isinstance(ty.shape, relax.ShapeExpr):
            return None
        return [self.sizes.simplify(size) for size in ty.shape.values]

    def is_free(self, size: tirx.Var) -> bool:
        """Whether `size` is a dimension of the model's inputs, which a call chooses."""
        return size in self._free

    def replace(self, name: str, tensor: Expr) -> None:
        """Let `name` be another tensor from here on, of the same elements."""
        self._nodes[name] = tensor

    def emit(self, expr: Expr) -> Expr:
        """`expr` bound to a variable."""
        return self.bb.emit(expr)

    def convert_with(
        self, node: onnx.NodeProto, operands: Mapping[int, Expr], attributes: Mapping[str, Any]
    ) -> Expr:
        """What TVM's importer makes of `node` with other operands and attributes (None: without
        the attribute)."""
        changed = onnx.NodeProto()
        changed.CopyFrom(node)
        kept = [each for each in node.attribute if each.name not in attributes]
        del changed.attribute[:]
        changed.attribute.extend(kept)
        for name, value in attributes.items():
            if value is not None:
                changed.attribute.append(onnx.helper.make_attribute(name, value))
        for at, operand in operands.items():
            changed.input[at] = f"{node.output[0]} operand {at}"
            self._nodes[changed.input[at]] = operand
        self._by_tvm(changed)
        return self._nodes[node.output[0]]

    # TVM's importer, overridden

    def _parse_graph_initializers(self, graph: onnx.GraphProto) -> None:
        for tensor in graph.initializer:
            self._nodes[tensor.name] = constant(numpy_helper.to_array(tensor))
        for name in self.opened.weights:
            self._nodes[name] = constant(self.opened.weight(name))

    def _check_for_unsupported_ops(self, graph: onnx.GraphProto) -> None:
        """All of them have been reported before."""

    def _construct_nodes(self, graph: onnx.GraphProto) -> None:
        for node in graph.node:
            self._convert(node)
        for value in graph.output:
            self.tensor(value.name)

    # One node

    def _convert(self, node: onnx.NodeProto) -> None:
        try:
            self._convert_node(node)
        except (OnnxImportError, operand_rules.FixedSize):
            raise
        except Unsupported as error:
            raise self.error(node, str(error)) from error
        except KeyError as error:
            missing = next((name for name in node.input if not self._has(name)), None)
            reason = f"{missing!r} is not computed before it" if missing else f"no {error}"
            raise self.error(node, reason) from error
        except Exception as error:
            raise self.error(node, _first_line(error)) from error

    def error(self, node: onnx.NodeProto, reason: str) -> OnnxImportError:
        return OnnxImportError(
            [Problem(label(node), operator_name(node), reason)], self.opened.name
        )

    def _has(self, name: str) -> bool:
        return not name or name in self._nodes or name in self.known

    def _convert_node(self, node: onnx.NodeProto) -> None:
        from .conversions import CONVERSIONS

        ours = node.domain in DEFAULT_DOMAINS
        attributes = {each.name: onnx.helper.get_attribute_value(each) for each in node.attribute}
        if ours and node.op_type == "Constant":
            value = constant_value(node, self.opened.folder)
            if value is None:
                raise Unsupported("its value is neither an array nor a number")
            self._nodes[node.output[0]] = constant(value)
            return
        if ours and node.op_type == "If" and self._take_branch(node, attributes):
            return
        if ours and self._fold(node):
            return
        if ours and self._know(node, attributes):
            return
        if ours:
            operand_rules.apply(self, node, attributes)
        conversion = CONVERSIONS.get(node.op_type) if ours else None
        result = conversion(self, node, attributes) if conversion else None
        if result is None:
            self._by_tvm(node)
        else:
            outputs = result if isinstance(result, tuple) else (result,)
            for name, value in zip(node.output, outputs, strict=False):
                if name:
                    self._set(name, value)
        self._recover_shapes(node)

    def _set(self, name: str, value: Expr | Known) -> None:
        if isinstance(value, Known):
            self.known[name] = value
        else:
            self._nodes[name] = self.bb.normalize(value)

    def _fold(self, node: onnx.NodeProto) -> bool:
        """Compute a node whose operands are all constants."""
        values: list[np.ndarray | None] = []
        for name in node.input:
            found = self._nodes.get(name)
            if isinstance(found, GenericConst):
                values.append(found.value.numpy())
            elif name in self.known and self.known[name].is_constant:
                values.append(self.known[name].constant())
            elif name:
                return False
            else:
                values.append(None)
        results = fold.compute(node, values, self.opset)
        if results is None:
            return False
        for name, value in zip(node.output, results, strict=False):
            if name:
                self._nodes[name] = constant(value)
        return True

    def _know(self, node: onnx.NodeProto, attributes: Mapping[str, Any]) -> bool:
        """Compute a node whose operands are known sizes."""
        inputs = [self.known_value(name) for name in node.input]
        found = shape_operators.compute(node.op_type, self.sizes, inputs, attributes)
        if found is None:
            return False
        self.known[node.output[0]] = found
        return True

    def _by_tvm(self, node: onnx.NodeProto) -> None:
        for name in _names_read(node):
            if name in self.known:
                self.tensor(name)
        for name in node.input:
            if name:
                self._nodes[name]  # noqa: B018 # a KeyError that tells which one
        super()._construct_nodes(onnx.GraphProto(node=[node]))

    def _recover_shapes(self, node: onnx.NodeProto) -> None:
        """Give results whose sizes TVM does not know new variables for them."""
        for name in node.output:
            value = self._nodes.get(name)
            ty = getattr(value, "ty", None)
            if not isinstance(ty, relax.TensorType) or ty.shape is not None or ty.ndim < 1:
                continue
            prefix = re.sub(r"\W", "_", name)
            sizes = [tirx.Var(f"{prefix}_{axis}", "int64") for axis in range(ty.ndim)]
            self.sizes.declare(sizes)
            value = self.bb.normalize(value)
            self._nodes[name] = self.bb.match_cast(
                value if isinstance(value, relax.Var) else self.bb.emit(value),
                relax.TensorType(sizes, ty.dtype),
            )

    def _take_branch(self, node: onnx.NodeProto, attributes: Mapping[str, Any]) -> bool:
        """Convert the branch of an `If` whose condition is known in its place."""
        condition = self.known_value(node.input[0])
        if condition is None or not condition.is_constant or condition.array.size != 1:
            return False
        branch = attributes["then_branch" if condition.elements[0] else "else_branch"]
        outer, outer_known = dict(self._nodes), dict(self.known)
        for tensor in branch.initializer:
            self._nodes[tensor.name] = constant(numpy_helper.to_array(tensor))
            self.known.pop(tensor.name, None)
        for inner in branch.node:
            self._convert(inner)
        results = [
            (self._nodes.get(each.name), self.known.get(each.name)) for each in branch.output
        ]
        self._nodes, self.known = outer, outer_known
        for name, (value, elements) in zip(node.output, results, strict=True):
            if value is not None:
                self._nodes[name] = value
            if elements is not None:
                self.known[name] = elements
        return True


def _abandon(builder: relax.BlockBuilder) -> None:
    """End the blocks of a builder that has failed: it warns of those that it is destroyed with."""
    with contextlib.suppress(Exception):
        while True:  # it raises an error when there are no more
            builder._end_block()


def _names_read(node: onnx.NodeProto) -> list[str]:
    """The values that a node and the graphs in its attributes read."""
    found = list(node.input)
    for attribute in node.attribute:
        if attribute.type == onnx.AttributeProto.GRAPH:
            found += [value.name for value in attribute.g.output]
            for inner in attribute.g.node:
                found += _names_read(inner)
    return found


def _first_line(error: Exception) -> str:
    """What an error says, without TVM's traces of its own source."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__
