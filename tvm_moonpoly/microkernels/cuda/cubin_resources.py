"""What a compiled kernel takes, as its machine code says: for where the compiler does not tell.

A cubin is an ELF file with a section ``.text.NAME`` for each kernel. ``.nv.info`` lists attributes
of kernels: registers, the frame on the stack. Before sm_90 the upper 8 bits of the ``sh_info`` of
``.text.NAME`` hold the registers as well. ``.nv.shared.NAME`` is as large as the static shared
memory, from sm_90 on with what the system keeps of each block. None of this is documented: what is
told twice must agree, and tests compare all of it with the report of ptxas.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

from tvm_moonpoly.microkernels.cuda.resources import Resources

_HEADER = struct.Struct("<4s12xHHIQQQIHHHHHH")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")

_MACHINE = 190  # EM_CUDA
_REGISTERS, _FRAME = 0x2F, 0x11  # EIATTR_REGCOUNT, EIATTR_FRAME_SIZE
_RESERVED, _RESERVED_BYTES = ".nv.shared.reserved.0", 1 << 10  # of each block, by the system
_SIZED = 4  # the value of an attribute follows it, with its size


@dataclass(frozen=True)
class _Section:
    name: str
    data: bytes
    size: int
    info: int


def resources_of(cubin: bytes) -> dict[str, Resources]:
    """What each kernel of a cubin takes. Of spilled registers it tells only that there are some:
    they lie on the stack, on which a kernel that spills nothing may have arrays of its own.

    Raises RuntimeError where it is no cubin as nvcc and NVRTC of CUDA 13 make them.
    """
    try:
        sections = {section.name: section for section in _sections(cubin)}
        symbols = _symbols(sections[".symtab"].data, sections[".strtab"].data)
        told = {(kind, symbols[symbol]): value for kind, symbol, value in _attributes(sections)}
    except (struct.error, KeyError, IndexError, ValueError) as error:
        raise RuntimeError(f"cubin: it cannot be read: {error!r}") from None
    reserved = _RESERVED_BYTES if _RESERVED in sections else 0
    found = {}
    for name, section in sections.items():
        kernel = name.removeprefix(".text.")
        if name == kernel:
            continue
        registers, frame = (told.get((kind, kernel)) for kind in (_REGISTERS, _FRAME))
        if registers is None or frame is None or section.info >> 24 not in (0, registers):
            raise RuntimeError(f"cubin: it does not tell what {kernel} takes")
        shared = sections.get(f".nv.shared.{kernel}")
        static = shared.size - reserved if shared else 0
        if static < 0:
            raise RuntimeError(f"cubin: it does not tell the shared memory of {kernel}")
        found[kernel] = Resources(registers, static, None, None, frame)
    if not found:
        raise RuntimeError("cubin: it has no kernels")
    return found


def _sections(cubin: bytes) -> Iterator[_Section]:
    mark, _, machine, _, _, _, at, _, _, _, _, size, count, names = _HEADER.unpack_from(cubin)
    if mark != b"\x7fELF" or machine != _MACHINE or size != _SECTION.size:
        raise ValueError("it is no ELF file of CUDA")
    heads = [_SECTION.unpack_from(cubin, at + i * size) for i in range(count)]
    texts = cubin[heads[names][4] : heads[names][4] + heads[names][5]]
    for name, _, _, _, offset, length, _, info, _, _ in heads:
        yield _Section(_text(texts, name), cubin[offset : offset + length], length, info)


def _symbols(table: bytes, texts: bytes) -> list[str]:
    return [_text(texts, name) for name, *_ in _SYMBOL.iter_unpack(table)]


def _attributes(sections: dict[str, _Section]) -> Iterator[tuple[int, int, int]]:
    """The attributes of kernels: kind, number of the kernel's symbol, value."""
    data, at = sections[".nv.info"].data, 0
    while at < len(data):
        form, kind, size = struct.unpack_from("<BBH", data, at)
        at += 4
        if form != _SIZED:
            continue
        if kind in (_REGISTERS, _FRAME):
            yield kind, *struct.unpack_from("<II", data, at)
        at += size


def _text(texts: bytes, at: int) -> str:
    return texts[at : texts.index(b"\0", at)].decode()
