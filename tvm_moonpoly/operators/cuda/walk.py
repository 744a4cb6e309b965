"""The dimensions that a product repeats over, taken together as far as micro-kernels can walk."""

from __future__ import annotations

from collections.abc import Sequence

from tvm import tirx

from tvm_moonpoly.emit import INT, Expr, as_int, branch, div, let, loop, scratch, select, when
from tvm_moonpoly.microkernels.cuda import MAX_OPERAND_ELEMENTS
from tvm_moonpoly.operators.product import Product
from tvm_moonpoly.operators.tensors import MAX_DIMS


class Walk:
    """The dimensions that a product repeats over, rows first, of each its size and how far apart
    its neighbours are in each tensor; b has the same rows for all, so that they are 0 apart."""

    def __init__(self, names: Sequence[str], m: Expr, sizes: Product) -> None:
        self._names = ("size", *names)
        self._width = len(self._names)
        self._memory = scratch(self._width * (MAX_DIMS - 1), INT)
        self.count = let(sizes["dims"] + 1)
        steps = {"a": sizes["a_m"], "b": as_int(0), "out": sizes["out_m"]}
        self._put(as_int(0), {"size": m, **steps})
        with loop(sizes["dims"]) as i:
            self._put(i + 1, dict(zip(("size", "a", "b", "out"), sizes.batch_dim(i), strict=True)))

    def _put(self, entry: Expr, numbers: dict[str, Expr]) -> None:
        for name, number in numbers.items():
            self.set(entry, name, number)

    def _at(self, entry: Expr, name: str) -> Expr:
        return entry * self._width + self._names.index(name)

    def get(self, entry: Expr, name: str) -> Expr:
        """A number of the dimension ``entry``."""
        return self._memory[self._at(entry, name)]

    def set(self, entry: Expr, name: str, number: Expr) -> None:
        """Replace it."""
        self._memory[self._at(entry, name)] = number

    def collapse(self, columns: dict[str, Expr]) -> None:
        """Take dimensions that lie evenly in all tensors as one; rows only as far as one matrix may
        span. Afterwards the fields are ``rows``, ``batch``, which is the longest of the others, and
        the number of entries of what is left, ``others``."""
        names = self._names[1:]
        last = scratch(1, INT)
        last[0] = as_int(0)
        with loop(self.count - 1) as i:
            new = let(i + 1)
            into, size = let(last[0]), let(self.get(last[0], "size"))
            steps = {name: let(self.get(new, name)) for name in names}
            even = [steps[name] == size * self.get(into, name) for name in names]
            length = let(self.get(new, "size"))
            # a single row lies evenly with whatever comes next
            alone = tirx.all(into == 0, size == 1, steps["b"] == 0)
            fits = [
                (size * length) * select(size == 1, steps[name], self.get(into, name))
                + columns[name]
                <= MAX_OPERAND_ELEMENTS
                for name in names
            ]
            together = tirx.all(
                tirx.any(alone, tirx.all(*even)), tirx.any(into > 0, tirx.all(*fits))
            )

            def merge() -> None:
                for name in names:
                    kept = self.get(into, name)
                    self.set(into, name, select(size == 1, steps[name], kept))
                self.set(into, "size", size * length)

            def keep() -> None:
                last[0] = into + 1
                self._put(last[0], {"size": length, **steps})

            branch(together, merge, keep)
        self._count = let(last[0] + 1)
        self.rows = {name: let(self.get(as_int(0), name)) for name in self._names}
        self._longest = self._find_longest()
        is_there = let(self._longest > 0)
        self.batch = {
            name: let(select(is_there, self.get(self._longest, name), int(name == "size")))
            for name in self._names
        }
        self.others = self._others()

    def _find_longest(self) -> Expr:
        """The longest dimension but the rows, 0 where there is none."""
        found, size = scratch(1, INT), scratch(1, INT)
        found[0], size[0] = as_int(0), as_int(0)
        with loop(self._count - 1) as i:
            longer = let(self.get(i + 1, "size") > size[0])
            found[0] = select(longer, i + 1, found[0])
            size[0] = select(longer, self.get(i + 1, "size"), size[0])
        return let(found[0])

    def _others(self) -> Expr:
        entries = scratch(1, INT)
        entries[0] = as_int(1)
        with loop(self._count - 1) as i:
            once = let(i + 1 == self._longest)
            entries[0] = entries[0] * select(once, 1, self.get(i + 1, "size"))
        return let(entries[0])

    def strides(self, name: str) -> Expr:
        """All strides of a tensor along these dimensions, or-ed."""
        found = scratch(1, INT)
        found[0] = as_int(0)
        with loop(self._count) as i:
            found[0] = tirx.bitwise_or(found[0], self.get(i, name))
        return let(found[0])

    def offsets(self, which: Expr) -> dict[str, Expr]:
        """Where the products of entry ``which`` of the ``others`` begin in each tensor."""
        rest = scratch(1, INT)
        found = {name: scratch(1, INT) for name in self._names[1:]}
        rest[0] = which
        for each in found.values():
            each[0] = as_int(0)
        with loop(self._count - 1) as i:
            dim = let(i + 1)
            with when(dim != self._longest):
                size = let(self.get(dim, "size"))
                quotient = let(div(rest[0], size))
                at = let(rest[0] - quotient * size)
                rest[0] = quotient
                for name, each in found.items():
                    each[0] = each[0] + at * self.get(dim, name)
        return {name: let(each[0]) for name, each in found.items()}
