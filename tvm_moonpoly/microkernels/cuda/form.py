"""What a CUDA micro-kernel computes: dtypes and layouts of a product, and what follows it."""

from __future__ import annotations

from dataclasses import dataclass

#: Bytes of an element.
ITEM_BYTES = {"float16": 2, "bfloat16": 2, "float32": 4}

INPUTS = ("float16", "bfloat16")

ACTIVATIONS = ("none", "relu", "gelu", "gelu_tanh", "silu")


@dataclass(frozen=True)
class Form:
    """What a micro-kernel computes, apart from its epilogue: dtypes and layouts of the operands.

    ``dtype_in`` of A (M, K) and B; accumulators are float32, and the result is ``dtype_out``.
    ``b_transposed``: B is (N, K), else (K, N). ``aligned``: rows of A and B begin at multiples of
    16 bytes and hold a multiple of 8 elements, so that they are copied 16 bytes at a time.
    """

    dtype_in: str = "float16"
    dtype_out: str = "float16"
    b_transposed: bool = False
    aligned: bool = True

    def __post_init__(self) -> None:
        if self.dtype_in not in INPUTS:
            raise ValueError(f"dtype_in: must be one of {INPUTS}, got {self.dtype_in!r}")
        if self.dtype_out not in (self.dtype_in, "float32"):
            raise ValueError(
                f"dtype_out: must be dtype_in ({self.dtype_in}) or float32, got {self.dtype_out!r}"
            )

    @property
    def name(self) -> str:
        """A short, stable name, part of the kernel's."""
        short = {"float16": "f16", "bfloat16": "bf16", "float32": "f32"}
        layout = "nt" if self.b_transposed else "nn"
        access = "" if self.aligned else "_any"
        return f"{short[self.dtype_in]}_{short[self.dtype_out]}_{layout}{access}"


#: All there are.
FORMS = tuple(
    Form(dtype, result, transposed, aligned)
    for dtype in ("float16", "bfloat16")
    for result in (dtype, "float32")
    for transposed in (False, True)
    for aligned in (True, False)
)


@dataclass(frozen=True)
class Epilogue:
    """What follows the product: ``activation(A @ B + bias + residual)``, in float32.

    bias (N,) and residual (batch, M, N) are of the result's dtype. ``gelu`` is the one with erf,
    ``gelu_tanh`` its approximation.
    """

    bias: bool = False
    activation: str = "none"
    residual: bool = False

    def __post_init__(self) -> None:
        if self.activation not in ACTIVATIONS:
            raise ValueError(f"activation: must be one of {ACTIVATIONS}, got {self.activation!r}")

    @property
    def name(self) -> str:
        """A short, stable name, part of the kernel's; empty for the bare product."""
        words = ["bias"] * self.bias + ["residual"] * self.residual
        words += [self.activation] * (self.activation != "none")
        return "_".join(words)
