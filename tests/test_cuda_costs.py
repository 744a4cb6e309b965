"""Computed costs of CUDA micro-kernels, and the elite set that is chosen by them."""

from __future__ import annotations

import pytest

from tvm_moonpoly.costmodel import cuda_analytic
from tvm_moonpoly.costmodel.cuda import CudaTable
from tvm_moonpoly.microkernels.cuda import GPUS, CudaTile, Form, candidates, kernel_name
from tvm_moonpoly.planner.cuda import spec
from tvm_moonpoly.planner.cuda.spec import Product
from tvm_moonpoly.tuning.cuda.elite import elite

A100, H100 = GPUS["nvidia-a100"], GPUS["nvidia-h100"]
FORM = Form()


@pytest.fixture(scope="module")
def computed() -> CudaTable:
    """Of all candidates on an A100 that go to memory in pairs."""
    tiles = [t for t in candidates(FORM, A100.arch) if t.epilogue == "pairs"]
    fitting = [t for t in tiles if cuda_analytic.resident(t, FORM, A100)]
    return cuda_analytic.table(fitting, FORM, A100)


def test_a_large_block_is_bound_by_the_tensor_cores():
    # 128 x 128 x 32: 2 x 2^19 operations, 2048 a cycle
    cycles = cuda_analytic.step_cycles(CudaTile(128, 128, 32), FORM, A100, 1)
    assert cycles["tensor cores"] == 512
    assert max(cycles, key=cycles.__getitem__) == "tensor cores"


def test_two_warps_keep_half_of_the_tensor_cores_busy():
    tile = CudaTile(32, 64, 64, 1, 2, 4)
    one, two = (cuda_analytic.step_cycles(tile, FORM, A100, b)["tensor cores"] for b in (1, 2))
    assert one == two == 2 * 32 * 64 * 64 / 1024


def test_hopper_does_not_reach_its_peak_by_mma_sync():
    one, other = (
        cuda_analytic.step_cycles(CudaTile(128, 128, 32), FORM, gpu, 1)["tensor cores"]
        for gpu in (A100, H100)
    )
    assert other == pytest.approx(one / 2 / 0.63)


def test_large_products_are_predicted_below_the_peak(computed):
    product = Product(8192, 8192, 8192)
    seconds = spec.best(product, computed).picoseconds * 1e-12
    assert 0.6 < 2 * 8192**3 / seconds / (A100.peak_tflops * 1e12) < 1.0


def test_more_registers_leave_room_for_fewer_blocks():
    tile = CudaTile(64, 64, 32, 2, 2, 3)
    name = kernel_name(tile, FORM)
    few, many = (
        cuda_analytic.table([tile], FORM, A100, {name: registers}).kernels[0]
        for registers in (64, 250)
    )
    assert few.resident > many.resident == 2
    assert few.steps[:2] == many.steps


def test_a_block_that_does_not_fit_is_told():
    with pytest.raises(ValueError, match=r"tile: a block of 128x128x128.* does not fit nvidia-rtx"):
        cuda_analytic.block_cost(CudaTile(128, 128, 128), FORM, GPUS["nvidia-rtx4090"])


def test_unaligned_operands_cost_more():
    tile = CudaTile(64, 64, 32, 2, 2, 2, epilogue="elements")
    aligned, unaligned = (
        cuda_analytic.block_cost(tile, Form(aligned=told), A100) for told in (True, False)
    )
    assert aligned.steps[0] < unaligned.steps[0]


def test_computed_costs_are_marked(computed):
    assert not computed.measured
    assert CudaTable.from_entries(computed.to_entries()) == computed


def test_an_elite_set_is_almost_as_good_as_all(computed):
    chosen = elite(computed, 12)
    assert 4 < len(chosen) <= 12
    few = CudaTable(computed.multiprocessors, computed.launch, chosen)
    # shapes that it was not chosen by
    shapes = [Product(m, n, 1280) for m in (3, 33, 130, 777, 3000) for n in (320, 1600, 5120)]
    for shape in shapes:
        best, found = (
            min(spec.single(i, shape, t) for i in range(len(t.kernels))) for t in (computed, few)
        )
        assert found <= 1.25 * best, shape


def test_the_first_of_an_elite_set_is_the_best_alone(computed):
    one, more = elite(computed, 1), elite(computed, 5)
    assert more[0] == one[0]


def test_an_elite_set_has_a_kernel(computed):
    with pytest.raises(ValueError, match="count: at least 1"):
        elite(computed, 0)
