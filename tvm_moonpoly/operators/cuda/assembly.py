"""Which micro-kernels an operator for a GPU is assembled from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tvm import tirx

from tvm_moonpoly.costmodel.cuda import CudaTable
from tvm_moonpoly.microkernels.cuda import (
    CudaTile,
    Epilogue,
    Form,
    Requirements,
    kernel_name,
    requirements,
)
from tvm_moonpoly.microkernels.cuda import build as build_kernel


@dataclass(frozen=True)
class Assembly:
    """The micro-kernels of one form that an operator is assembled from, and their costs, in order.

    Raises ValueError where the table is of other micro-kernels.
    """

    form: Form
    tiles: tuple[CudaTile, ...]
    table: CudaTable

    def __post_init__(self) -> None:
        names = [kernel_name(tile, self.form) for tile in self.tiles]
        if names != [kernel.name for kernel in self.table.kernels]:
            raise ValueError("table: its kernels are not those of the tiles, in the same order")

    @property
    def needs(self) -> Requirements:
        """What a call must keep so that each of the micro-kernels is right."""
        each = [requirements(tile, self.form) for tile in self.tiles]
        # all are powers of two
        names = Requirements.__dataclass_fields__
        return Requirements(**{name: max(getattr(r, name) for r in each) for name in names})

    def suits(self, n: int, k: int) -> bool:
        """Whether a call with contiguous tensors, as CUDA allocates them, keeps what it needs."""
        needs = self.needs
        row_of_b = k if self.form.b_transposed else n
        return not (
            k % needs.k or n % needs.n or k % needs.operands or row_of_b % needs.operands
            or n % needs.result
        )  # fmt: skip


@dataclass(frozen=True)
class Operator:
    """The packed function ``name``, put together from ``assemblies`` of the same dtypes and layout
    with one epilogue: the first that suits a call is taken, the last must suit all.

    ``by_axes``: it takes operands with their dimensions in any order, see `by_axes`; else as
    `matmul` says.

    Raises ValueError where the assemblies do not go together or the last does not suit all calls.
    """

    name: str
    assemblies: tuple[Assembly, ...]
    epilogue: Epilogue = Epilogue()
    by_axes: bool = False

    def __post_init__(self) -> None:
        _check(self.assemblies)

    @property
    def form(self) -> Form:
        """Of the first assembly: dtypes and layout are those of all."""
        return self.assemblies[0].form

    @property
    def extras(self) -> list[str]:
        """The names of what the epilogue reads, in the order of the arguments."""
        return ["bias"] * self.epilogue.bias + ["residual"] * self.epilogue.residual

    def kernels(self, shared_limit: int) -> dict[str, tirx.PrimFunc]:
        """Its micro-kernels by name, scheduled; see `microkernels.cuda.build`."""
        return {
            kernel_name(tile, assembly.form, self.epilogue): build_kernel(
                tile, assembly.form, self.epilogue, shared_limit
            )
            for assembly in self.assemblies
            for tile in assembly.tiles
        }


def _check(assemblies: Sequence[Assembly]) -> None:
    if not assemblies:
        raise ValueError("assemblies: at least one is needed")
    kinds = {(a.form.dtype_in, a.form.dtype_out, a.form.b_transposed) for a in assemblies}
    if len(kinds) > 1:
        raise ValueError(f"assemblies: dtypes and layout must be the same, got {sorted(kinds)}")
    needs = assemblies[-1].needs
    if max(needs.k, needs.n, needs.operands, needs.result) > 1:
        raise ValueError("assemblies: the last one must be of an unaligned form, to suit all calls")
