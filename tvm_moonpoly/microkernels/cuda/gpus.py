"""Facts about GPUs: what their compute capability allows, and what a product of it has.

Which of them a tvm Target means, is told by `products`.

Sources: NVIDIA, CUDA C++ Programming Guide, "Compute Capabilities" (limits of a multiprocessor) and
the CUDA occupancy calculator (allocation units); NVIDIA's datasheets and architecture white papers
of the products (multiprocessors, clocks, caches, bandwidth, peaks of dense tensor-core products).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from tvm.runtime import Device
from tvm.target import Target


@dataclass(frozen=True)
class Architecture:
    """What one multiprocessor (SM) of a compute capability holds. Sizes are in bytes."""

    arch: str
    threads: int
    blocks: int
    shared_bytes: int
    block_shared_bytes: int
    #: operations (2 a fused multiply-add) a cycle, fp16 or bf16 with float32 accumulators
    tensor_flops: int
    registers: int = 65536
    #: registers of a thread, and of a warp, are given out in these units
    thread_registers: int = 8
    warp_registers: int = 256
    #: schedulers of an SM, each with its share of the registers
    partitions: int = 4
    #: shared memory is given out in this unit, after what the system keeps of each block
    shared_unit: int = 128
    shared_reserved: int = 1 << 10
    block_threads: int = 1024


#: Shared memory that a block may have without asking for more at its launch.
STATIC_SHARED_BYTES = 48 << 10

ARCHITECTURES = {
    a.arch: a
    for a in (
        Architecture("sm_80", 2048, 32, 164 << 10, 163 << 10, 2048),
        Architecture("sm_86", 1536, 16, 100 << 10, 99 << 10, 512),
        Architecture("sm_89", 1536, 24, 100 << 10, 99 << 10, 512),
        Architecture("sm_90", 2048, 32, 228 << 10, 227 << 10, 4096),
    )
}


def architecture(arch: str) -> Architecture:
    """The limits of a compute capability, as "sm_80".

    Raises ValueError for one that the micro-kernels are not made for.
    """
    try:
        return ARCHITECTURES[arch]
    except KeyError:
        known = ", ".join(ARCHITECTURES)
        raise ValueError(f"arch: must be one of {known}, got {arch!r}") from None


@dataclass(frozen=True)
class Gpu:
    """One product. Clock in MHz (boost), L2 in bytes, bandwidth of its memory in GB/s.

    ``source`` names the public document of its figures.
    """

    name: str
    arch: str
    multiprocessors: int
    clock_mhz: int
    l2_bytes: int
    bandwidth_gbs: int
    source: str

    @property
    def architecture(self) -> Architecture:
        """The limits of its multiprocessors."""
        return architecture(self.arch)

    @property
    def peak_tflops(self) -> float:
        """Peak of dense fp16 or bf16 products with float32 accumulators, at the boost clock."""
        per_cycle = self.multiprocessors * self.architecture.tensor_flops
        return per_cycle * self.clock_mhz * 1e6 / 1e12

    def target(self) -> Target:
        """Its tvm Target, with an LLVM host. (tvm has tags for some of these GPUs only.)

        Of shared memory it tells what a block may have statically, as tvm's tags do: tvm's own
        schedules allocate no other. One that is not among `GPUS` tells its multiprocessors and
        clock after its name, see `products`.
        """
        limits = self.architecture
        known = GPUS.get(self.name) == self
        return Target(
            {
                "kind": "cuda",
                "arch": self.arch,
                "model": self.name
                if known
                else f"{self.name}:{self.multiprocessors}:{self.clock_mhz}",
                "max_threads_per_block": limits.block_threads,
                "max_shared_memory_per_block": STATIC_SHARED_BYTES,
                "registers_per_block": limits.registers,
                "thread_warp_size": 32,
                "l2_cache_size_bytes": self.l2_bytes,
                "host": {"kind": "llvm"},
            }
        )


_MIB = 1 << 20

GPUS = {
    gpu.name: gpu
    for gpu in (
        Gpu(
            "nvidia-a100",
            "sm_80",
            108,
            1410,
            40 * _MIB,
            2039,
            "NVIDIA A100 80GB SXM datasheet; NVIDIA A100 Tensor Core GPU Architecture",
        ),
        Gpu(
            "nvidia-h100",
            "sm_90",
            132,
            1830,
            50 * _MIB,
            3352,
            "NVIDIA H100 SXM5 datasheet; NVIDIA H100 Tensor Core GPU Architecture",
        ),
        Gpu(
            "nvidia-h200",
            "sm_90",
            132,
            1830,
            50 * _MIB,
            4800,
            "NVIDIA H200 SXM datasheet; NVIDIA H100 Tensor Core GPU Architecture",
        ),
        Gpu(
            "nvidia-rtx4090",
            "sm_89",
            128,
            2520,
            72 * _MIB,
            1008,
            "NVIDIA Ada GPU Architecture (GeForce RTX 4090)",
        ),
        Gpu(
            "nvidia-rtx3090",
            "sm_86",
            82,
            1695,
            6 * _MIB,
            936,
            "NVIDIA Ampere GA102 GPU Architecture (GeForce RTX 3090)",
        ),
    )
}


def products(target: Target) -> list[Gpu]:
    """The GPUs that ``target`` may mean, the likeliest first; none for what the micro-kernels are
    not made for.

    A target names its GPU by ``model``, as those of `Gpu.target` do. tvm's targets have no place
    for how many multiprocessors there are: ``model`` may tell them of any GPU and its clock in MHz,
    as ``nvidia-a30:56:1440``. Of others, like tvm's tags, the compute capability is known, and
    mostly how large the L2 cache is.

    Raises ValueError where a ``model`` with colons tells no such numbers.
    """
    if str(target.kind.name) != "cuda":
        return []
    # sm_90a runs what is made for sm_90
    arch = str(target.attrs.get("arch", "")).removesuffix("a")
    model, l2_bytes = str(target.attrs.get("model", "")), target.attrs.get("l2_cache_size_bytes")
    found = [gpu for gpu in GPUS.values() if gpu.arch == arch]
    found.sort(key=lambda gpu: (gpu.name != model, gpu.l2_bytes != l2_bytes))
    if ":" not in model or not found:
        return found
    name, *numbers = model.split(":")
    if len(numbers) != 2 or not all(n.isdecimal() and 0 < int(n) < 1 << 16 for n in numbers):
        raise ValueError(
            f"target: model: must be a name, or name:multiprocessors:clock in MHz, not {model!r}"
        )
    count, clock = map(int, numbers)
    return [_like(found[0], name, count, clock, int(l2_bytes or found[0].l2_bytes)), *found]


def detected(device: Device) -> Gpu | None:
    """The GPU of this machine as its driver tells it, for `Gpu.target`: one of `GPUS`, or with its
    own multiprocessors, clock and L2 cache. None where there is none that the micro-kernels are
    made for."""
    if not device.exist:
        return None
    arch = "sm_" + "".join(str(device.compute_version).split(".")[:2])
    alike = [gpu for gpu in GPUS.values() if gpu.arch == arch]
    name, count = str(device.device_name), int(device.multi_processor_count)
    for gpu in alike:
        if is_named(gpu, name) and gpu.multiprocessors == count:
            return gpu
    if not alike:
        return None
    plain = "-".join(name.lower().replace(":", " ").split())
    clock = int(device.max_clock_rate) // 1000  # told in kHz
    return _like(alike[0], plain, count, clock, device.l2_cache_size_bytes or alike[0].l2_bytes)


def is_named(gpu: Gpu, device_name: str) -> bool:
    """Whether a driver's name of a device may be of ``gpu``."""
    words = [word.lower() for word in device_name.replace("-", " ").split()]
    # nvidia-rtx4090 is told as NVIDIA GeForce RTX 4090
    product = gpu.name.removeprefix("nvidia-")
    return product in words or product in map("".join, zip(words, words[1:], strict=False))


def _like(gpu: Gpu, name: str, multiprocessors: int, clock_mhz: int, l2_bytes: int) -> Gpu:
    return replace(
        gpu,
        name=name,
        multiprocessors=multiprocessors,
        clock_mhz=clock_mhz,
        l2_bytes=l2_bytes,
        source=f"as told; else as {gpu.name}",
    )
