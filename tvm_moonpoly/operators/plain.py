"""Products of integers and of doubles: plain loops over operands of any strides.

They are there so that such products are right, with dynamic shapes, and not slow; they have no
micro-kernels and no plans. Integers wrap around, like numpy's.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

from tvm import tirx
from tvm.tirx.script import builder as T

from tvm_moonpoly.emit import (
    FLOAT,
    INT,
    Expr,
    Functions,
    Pointer,
    as_int,
    branch,
    div,
    item_size,
    let,
    loop,
    maximum,
    minimum,
    scratch,
    select,
    vector,
    vector_type,
    when,
)
from tvm_moonpoly.machine import Machine
from tvm_moonpoly.operators.product import PARAMETERS, Product
from tvm_moonpoly.operators.sharing import run_chunks
from tvm_moonpoly.operators.tensors import Tensor
from tvm_moonpoly.planner.plan import largest


@dataclass(frozen=True)
class Kind:
    """Types of a product: operands of ``operand``, summed up and stored as ``out``."""

    suffix: str
    operand: str
    out: str

    @property
    def wraps(self) -> bool:
        """Whether sums are integers, which wrap around."""
        return self.out.startswith("int")

    @property
    def function(self) -> str:
        """The packed function of such products."""
        return f"moonpoly_matmul_{self.suffix}"

    def lanes(self, machine: Machine) -> int:
        """Sums in one vector."""
        return machine.lanes * item_size(FLOAT) // item_size(self.out)


KINDS = (
    Kind("i8", "int8", "int32"),
    Kind("i32", "int32", "int32"),
    Kind("i64", "int64", "int64"),
    Kind("f64", "float64", "float64"),
)

#: Multiplications that are worth a worker of their own.
_GRAIN = 1 << 18

#: Chunks of rows for each worker, of which there may be fewer.
_CHUNKS = 8

#: Tiles of the loops over adjacent elements: rows of A, vectors of B.
_ROWS, _VECTORS = 4, 2

#: Columns that are summed up at once where the rows of B are not adjacent.
_TOGETHER = 4


def emit(functions: Functions, machine: Machine) -> None:
    """Define the packed functions of all `KINDS`; parameters as `matmul.MATMUL` has them."""
    for kind in KINDS:
        _emit_rows(functions, kind, kind.lanes(machine))
        _emit_matmul(functions, kind, min(machine.cores, largest("workers")))


def _emit_matmul(functions: Functions, kind: Kind, cores: int) -> None:
    @functions.public(kind.function, **PARAMETERS, out="handle")
    def _(**handles: Any) -> None:
        types = {"a": kind.operand, "b": kind.operand, "out": kind.out}
        a, b, out = tensors = tuple(Tensor(handles[t], t, dtype) for t, dtype in types.items())
        product = Product(handles, tensors, adjacent=False)
        with when(product.not_empty()):
            m, n, k = (let(product[name]) for name in "mnk")
            rows = let(product["batch"] * m)
            # in floating point, since there may be more multiplications than an integer counts
            work = let(tirx.Cast("float32", rows) * tirx.Cast("float32", n * maximum(k, 1)))
            grains = tirx.min(work / tirx.const(_GRAIN, FLOAT), tirx.const(cores, FLOAT))
            workers = let(minimum(maximum(tirx.Cast(INT, grains), 1), rows))
            chunks = let(select(workers > 1, minimum(workers * _CHUNKS, rows), 1))

            def some(first: Expr, count: Expr) -> None:
                """The product's rows, of all batch entries one after another."""
                start = let(div(first, m))
                with loop(div(first + count - 1, m) - start + 1) as i:
                    which = let(start + i)
                    at_a, at_b, at_out = product.offsets(which)
                    row = let(maximum(first - which * m, 0))
                    end = let(minimum(first + count - which * m, m))
                    functions[_rows(kind)](
                        a.data.at(at_a + row * product["a_m"]),
                        b.data.at(at_b),
                        out.data.at(at_out + row * product["out_m"]),
                        *(product[s] for s in ("a_m", "a_k", "b_k", "b_n", "out_m", "out_n")),
                        end - row,
                        n,
                        k,
                    )

            def chunk(index: Expr) -> None:
                first = let(div(index * rows, chunks))
                some(first, let(div((index + 1) * rows, chunks) - first))

            run_chunks(workers, chunks, lambda each: each(chunk))


def _rows(kind: Kind) -> str:
    return f"moonpoly_rows_{kind.suffix}"


def _emit_rows(functions: Functions, kind: Kind, lanes: int) -> None:
    parameters = {
        **{"a": f"{kind.operand}*", "b": f"{kind.operand}*", "out": f"{kind.out}*"},
        **dict.fromkeys(("a_m", "a_k", "b_k", "b_n", "out_m", "out_n", "m", "n", "k"), INT),
    }

    @functions.compact(_rows(kind), **parameters)
    def _(a: Any, b: Any, out: Any, **sizes: Expr) -> None:
        loops = _Loops(kind, lanes, a, b, out, sizes)
        rows = tirx.all(sizes["b_n"] == 1, sizes["out_n"] == 1)
        columns = tirx.all(sizes["a_k"] == 1, sizes["b_k"] == 1)
        with _imported(kind, lanes):
            branch(rows, loops.by_rows, lambda: branch(columns, loops.by_dots, loops.by_elements))


@dataclass(frozen=True)
class _Loops:
    kind: Kind
    lanes: int
    a: Pointer
    b: Pointer
    out: Pointer
    sizes: dict[str, Expr]

    def by_rows(self) -> None:
        """The elements of each row of B and of the output are adjacent."""
        m, n = self.sizes["m"], self.sizes["n"]
        tall = let(div(m, _ROWS))
        width = _VECTORS * self.lanes
        wide = let(div(n, width))
        with loop(tall) as i, loop(wide) as j:
            self._tile(_ROWS, _VECTORS, let(i * _ROWS), let(j * width))
        with loop(m - tall * _ROWS) as i, loop(wide) as j:
            self._tile(1, _VECTORS, let(tall * _ROWS + i), let(j * width))
        first = let(wide * width)
        vectors = let(div(n - first, self.lanes))
        rest = let(first + vectors * self.lanes)
        with loop(m) as i:
            with loop(vectors) as j:
                self._tile(1, 1, i, let(first + j * self.lanes))
            with loop(n - rest) as j:
                self._elements(i, [let(rest + j)], as_int(0))

    def by_dots(self) -> None:
        """The elements of each row of A and of each column of B are adjacent."""
        self._by_columns(self._dots)

    def by_elements(self) -> None:
        """Nothing is adjacent."""
        self._by_columns(lambda row, columns: self._elements(row, columns, as_int(0)))

    def _by_columns(self, columns: Callable[[Expr, list[Expr]], None]) -> None:
        """Several columns at once, so that their sums need not wait for one another."""
        groups = let(div(self.sizes["n"], _TOGETHER))
        with loop(self.sizes["m"]) as i:
            with loop(groups) as group:
                columns(i, [let(group * _TOGETHER + j) for j in range(_TOGETHER)])
            with loop(self.sizes["n"] - groups * _TOGETHER) as j:
                columns(i, [let(groups * _TOGETHER + j)])

    def _tile(self, height: int, vectors: int, row: Expr, column: Expr) -> None:
        lanes, sizes = self.lanes, self.sizes
        sums = [[scratch(lanes, self.kind.out) for _ in range(vectors)] for _ in range(height)]
        whole = vector(0, lanes)
        for each in (total for of_row in sums for total in of_row):
            each[whole] = T.Broadcast(tirx.const(0, self.kind.out), lanes)
        with loop(sizes["k"]) as k:
            right = [
                let(self._read(self.b, vector(k * sizes["b_k"] + column + v * lanes, lanes)))
                for v in range(vectors)
            ]
            for i, of_row in enumerate(sums):
                left = self._read(self.a, (row + i) * sizes["a_m"] + k * sizes["a_k"])
                spread = let(T.Broadcast(left, lanes))
                for total, values in zip(of_row, right, strict=True):
                    total[whole] = self._plus_product(total[whole], spread, values, lanes)
        for i, of_row in enumerate(sums):
            for v, total in enumerate(of_row):
                at = (row + i) * sizes["out_m"] + column + v * lanes
                self.out[vector(at, lanes)] = total[whole]

    def _dots(self, row: Expr, columns: list[Expr]) -> None:
        lanes, sizes, whole = self.lanes, self.sizes, vector(0, self.lanes)
        partial = [scratch(lanes, self.kind.out) for _ in columns]
        for each in partial:
            each[whole] = T.Broadcast(tirx.const(0, self.kind.out), lanes)
        steps = let(div(sizes["k"], lanes))
        with loop(steps) as step:
            at = let(step * lanes)
            left = let(self._read(self.a, vector(row * sizes["a_m"] + at, lanes)))
            for each, column in zip(partial, columns, strict=True):
                right = self._read(self.b, vector(column * sizes["b_n"] + at, lanes))
                each[whole] = self._plus_product(each[whole], left, right, lanes)
        one = tirx.const(1, self.kind.out)
        for each in partial:
            for lane in range(1, lanes):
                each[0] = self._plus_product(each[0], each[lane], one, 1)
        self._elements(row, columns, let(steps * lanes), partial)

    def _elements(
        self, row: Expr, columns: list[Expr], first: Expr, sums: list[Pointer] | None = None
    ) -> None:
        """Adds what there is from ``first`` on of K to ``sums``, and stores them."""
        sizes = self.sizes
        if sums is None:
            sums = [scratch(1, self.kind.out) for _ in columns]
            for total in sums:
                total[0] = tirx.const(0, self.kind.out)
        with loop(sizes["k"] - first) as step:
            k = let(first + step)
            left = let(self._read(self.a, row * sizes["a_m"] + k * sizes["a_k"]))
            for total, column in zip(sums, columns, strict=True):
                right = self._read(self.b, k * sizes["b_k"] + column * sizes["b_n"])
                total[0] = self._plus_product(total[0], left, right, 1)
        for total, column in zip(sums, columns, strict=True):
            self.out[row * sizes["out_m"] + column * sizes["out_n"]] = total[0]

    def _read(self, operand: Pointer, at: Expr) -> Expr:
        value = operand[at]
        lanes = at.lanes.value if isinstance(at, tirx.Ramp) else 1
        return tirx.Cast(vector_type(self.kind.out, lanes), value)

    def _plus_product(self, total: Expr, x: Expr, y: Expr, lanes: int) -> Expr:
        if not self.kind.wraps:
            return total + x * y
        return T.call_extern(
            vector_type(self.kind.out, lanes), _helper(self.kind, lanes), total, x, y
        )


def _helper(kind: Kind, lanes: int) -> str:
    return f"moonpoly_plus_product_{kind.suffix}_{lanes}"


def _imported(kind: Kind, lanes: int) -> AbstractContextManager[Any]:
    """``total + x * y`` of integers in LLVM's language, for what is written inside.

    tvm's own sums and products of integers are undefined when they overflow.
    """
    if not kind.wraps:
        return nullcontext()
    text = []
    for count in (1, lanes):
        element = kind.out.replace("int", "i")
        type_ = element if count == 1 else f"<{count} x {element}>"
        text.append(
            f"define linkonce_odr hidden {type_} @{_helper(kind, count)}"
            f"({type_} %total, {type_} %x, {type_} %y) alwaysinline {{\n"
            f"  %product = mul {type_} %x, %y\n"
            f"  %sum = add {type_} %total, %product\n"
            f"  ret {type_} %sum\n}}\n"
        )
    return T.attr(tirx.const(0, "int32"), "pragma_import_llvm", "".join(text))
