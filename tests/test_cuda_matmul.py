"""The product on a GPU, planned by its host function and run in the emulator."""

from __future__ import annotations

import numpy as np
import pytest
from cuda_emulator import emulate, missing_compiler, run_host
from cuda_testing import ANY, EPILOGUE, SINGLE, TILES, small_assemblies
from numpy.lib.stride_tricks import as_strided

from bench.gpu.runner.reference import activate
from tvm_moonpoly.microkernels.cuda import Epilogue, Form, cuda_source, kernel_name
from tvm_moonpoly.operators.cuda import Assembly, build, launches
from tvm_moonpoly.planner.cuda import spec
from tvm_moonpoly.planner.cuda.spec import Axis, Product

pytestmark = pytest.mark.skipif(missing_compiler() is not None, reason=str(missing_compiler()))


class Operator:
    """The operator, compiled once, of which the launches go to the emulator."""

    def __init__(self, transposed: bool, epilogue: Epilogue) -> None:
        self.transposed, self.epilogue = transposed, epilogue
        assemblies = small_assemblies(transposed)
        self.aligned, self.any = assemblies[0], assemblies[-1]
        self.module = build("product", assemblies, epilogue)
        self.emulated = emulate(cuda_source(self.module))

    def launches(self, *args: np.ndarray) -> list[str]:
        """The kernels that a call launched; the last array holds the result then."""
        done = run_host(self.module, self.emulated, "product", args)
        return [launch.kernel.removesuffix("_kernel") for launch in done]

    def check(self, batch: int, m: int, n: int, k: int, pad: int = 0) -> list[str]:
        """A call against numpy; the names of the kernels it launched."""
        rng = np.random.default_rng(m + n + k)

        def some(*shape: int) -> np.ndarray:
            # rows are ``pad`` elements further apart than they are long
            *leading, last = shape
            memory = rng.uniform(-1, 1, (*leading, last + pad)).astype(np.float16)
            return memory[..., :last]

        a, b = some(batch, m, k), some(batch, *((n, k) if self.transposed else (k, n)))
        bias, residual, c = some(n).copy(), some(batch, m, n), some(batch, m, n)
        extras = [bias] * self.epilogue.bias + [residual] * self.epilogue.residual
        launched = self.launches(a, b, *extras, c)
        right = b.swapaxes(1, 2) if self.transposed else b
        expected = a.astype(np.float64) @ right.astype(np.float64)
        if self.epilogue.bias:
            expected = activate(self.epilogue.activation, expected + bias + residual)
        np.testing.assert_allclose(c, expected, rtol=2e-3, atol=4e-3)
        return launched


@pytest.fixture(scope="module")
def plain() -> Operator:
    return Operator(transposed=False, epilogue=Epilogue())


@pytest.fixture(scope="module")
def fused() -> Operator:
    return Operator(transposed=True, epilogue=EPILOGUE)


SHAPES = [(1, 1, 64, 64), (1, 17, 72, 40), (2, 33, 136, 8), (1, 200, 72, 96), (3, 16, 64, 0)]


@pytest.mark.parametrize("shape", SHAPES)
def test_equals_numpy(plain, shape):
    assert plain.check(*shape)


@pytest.mark.parametrize("shape", SHAPES)
def test_equals_numpy_with_an_epilogue(fused, shape):
    assert fused.check(*shape)


@pytest.mark.parametrize("shape", [(1, 1, 1, 1), (1, 7, 65, 3), (2, 31, 8, 33), (1, 64, 63, 64)])
def test_what_is_not_aligned_goes_to_the_kernels_for_the_rest(plain, shape):
    (launched,) = plain.check(*shape)
    assert launched == kernel_name(ANY[0], plain.any.form)


@pytest.mark.parametrize("n", [1, 63, 65, 129])
def test_an_odd_number_of_columns_is_copied_16_bytes_at_a_time(fused, n):
    """Where the rows of both operands are columns of the product, and so aligned."""
    (launched,) = fused.check(1, 33, n, 64)
    assert launched == kernel_name(SINGLE[0], fused.aligned.form, EPILOGUE)
    (launched,) = fused.check(2, 5, n, 63)
    assert launched == kernel_name(ANY[0], fused.any.form, EPILOGUE)


def test_rows_that_are_not_aligned_go_there_too(plain):
    assert plain.check(1, 40, 64, 64, pad=8) != plain.check(1, 40, 64, 64, pad=3)


def test_the_launches_are_those_of_the_plan(plain):
    for m, n in ((1, 64), (40, 128), (200, 72), (330, 64), (64, 520), (129, 192)):
        product = Product(m, n, 64)
        plan = spec.plan(product, plain.aligned.table)
        kernels = [TILES[region.kernel] for region in spec.regions(plan, product)]
        assert plain.check(1, m, n, 64) == [kernel_name(t, plain.aligned.form) for t in kernels]


@pytest.mark.parametrize("axis", [Axis.ROWS, Axis.COLUMNS])
def test_two_regions_make_one_result(plain, fused, axis):
    table = plain.aligned.table
    sizes = [(m, n) for m in range(16, 400, 24) for n in range(64, 400, 24)]
    m, n = next(s for s in sizes if spec.plan(Product(*s, 64), table).axis == axis)
    assert len(plain.check(1, m, n, 64)) == 2
    fused.check(1, m, n, 64)


@pytest.mark.parametrize("shape", [(0, 4, 4, 4), (1, 0, 4, 4), (1, 4, 0, 4)])
def test_an_empty_result_launches_nothing(plain, shape):
    assert plain.check(*shape) == []


def test_heads_may_share_an_operand(plain):
    rng = np.random.default_rng(0)
    a = rng.uniform(-1, 1, (3, 24, 64)).astype(np.float16)
    one = rng.uniform(-1, 1, (64, 72)).astype(np.float16)
    b = as_strided(one, (3, 64, 72), (0, *one.strides))
    c = np.zeros((3, 24, 72), np.float16)
    plain.launches(a, b, c)
    expected = a.astype(np.float64) @ one.astype(np.float64)
    np.testing.assert_allclose(c, expected, rtol=2e-3, atol=4e-3)


@pytest.mark.parametrize(
    "a, b",
    [
        ((64,), (64, 72)),
        ((2, 3, 5, 64), (64, 72)),
        ((2, 0, 64), (64, 72)),
        ((2, 3, 24, 64), (2, 3, 64, 72)),
        ((24, 64), (2, 3, 64, 8)),
        ((2, 3, 24, 64), (1, 1, 64, 72)),
    ],
)
def test_any_number_of_dimensions(plain, a, b):
    rng = np.random.default_rng(len(a))
    a, b = (rng.uniform(-1, 1, shape).astype(np.float16) for shape in (a, b))
    expected = a.astype(np.float64) @ b.astype(np.float64)
    c = np.full(expected.shape, 7, np.float16)
    assert bool(plain.launches(a, b, c)) == bool(c.size)
    np.testing.assert_allclose(c, expected, rtol=2e-3, atol=4e-3)


def test_rows_of_several_dimensions_are_evenly_spaced(plain):
    memory = np.random.default_rng(0).uniform(-1, 1, (3, 5, 72)).astype(np.float16)
    a, b, c = memory[..., :64], np.ones((64, 8), HALF), np.zeros((3, 5, 8), HALF)
    plain.launches(a, b, c)
    np.testing.assert_allclose(c[..., 0], a.astype(np.float64).sum(-1), rtol=2e-3, atol=4e-3)
    with pytest.raises(ValueError, match="a: rows must be evenly spaced in memory"):
        plain.launches(memory[:, :4, :64], b, c[:, :4])


HALF = np.float16


@pytest.mark.parametrize(
    "a, b, c, message",
    [
        ((1, 4, 8), (1, 16, 8), (1, 4, 8), "b: it has 16 rows .*, by a it must have 8"),
        ((1, 4, 8), (1, 8, 8), (2, 4, 8), "c: it is 2 matrices, by a and b it must be 1"),
        ((3, 4, 8), (2, 8, 8), (3, 4, 8), "b: it is 2 matrices, by c it must be 3"),
        ((3, 4, 8), (8, 8), (2, 4, 8), "a: it has 12 rows, by c it must have 8"),
        ((8,), (1, 8, 8), (1, 1, 8), "a: must have at least 2 dimensions, as B has more"),
        ((1, 4, 8), (8,), (1, 4, 8), "b: must have at least 2 dimensions, not 1"),
        ((1, 4, 8), (1, 8, 8), (1, 4, 16), "b: it gives 8 columns, by c it must give 16"),
    ],
)
def test_bad_shapes_are_told(plain, a, b, c, message):
    with pytest.raises(ValueError, match=message):
        plain.launches(np.zeros(a, HALF), np.zeros(b, HALF), np.zeros(c, HALF))


def test_a_wrong_dtype_is_told(plain):
    a, b, c = np.zeros((1, 4, 8), HALF), np.zeros((1, 8, 8), HALF), np.zeros((1, 4, 8), np.float32)
    with pytest.raises(TypeError, match="c: must be float16"):
        plain.launches(a, b, c)


def test_rows_of_scattered_elements_are_told(plain):
    a = np.zeros((1, 4, 16), HALF)[..., ::2]
    with pytest.raises(ValueError, match="a: elements of a row must be adjacent, not 2 apart"):
        plain.launches(a, np.zeros((1, 8, 8), HALF), np.zeros((1, 4, 8), HALF))


def test_what_is_too_large_is_told(plain):
    b, c = np.zeros((1, 8, 8), HALF), np.zeros((1, 2, 8), HALF)
    # pages that are never touched take no memory
    far = as_strided(np.zeros((1 << 30) + 8, HALF), (1, 2, 8), (0, 1 << 31, 2))
    with pytest.raises(ValueError, match="a: a matrix may span 1073741824 elements, not"):
        plain.launches(far, b, c)


@pytest.mark.parametrize("limit, most", [("MAX_BATCH", 2), ("MAX_OPERAND_ELEMENTS", 64 * 72 * 2)])
def test_products_beyond_what_a_launch_can_have_are_several(monkeypatch, limit, most):
    monkeypatch.setattr(launches, limit, most)
    small = Operator(transposed=False, epilogue=Epilogue())
    assert len(small.check(5, 24, 72, 64)) == 3
    assert len(small.check(1, 24, 72, 64)) == 1


def test_a_cpu_tensor_is_told(plain):
    import tvm

    zeros = [tvm.runtime.tensor(np.zeros(s, HALF)) for s in ((1, 4, 8), (1, 8, 8), (1, 4, 8))]
    with pytest.raises(ValueError, match="a: must be on the GPU"):
        plain.module["product"](*zeros)


def test_the_last_assembly_must_suit_all_calls():
    aligned, transposed = small_assemblies(False)[0], small_assemblies(True)[-1]
    with pytest.raises(ValueError, match="assemblies: the last one must be of an unaligned form"):
        build("product", [aligned])
    with pytest.raises(ValueError, match="assemblies: dtypes and layout must be the same"):
        build("product", [aligned, transposed])
    with pytest.raises(ValueError, match="table: its kernels are not those of the tiles"):
        Assembly(Form(), TILES[::-1], aligned.table)
