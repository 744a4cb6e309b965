"""The launches that are measured of CUDA micro-kernels."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from tvm_moonpoly.microkernels.cuda import (
    GPUS,
    MAX_OPERAND_ELEMENTS,
    CudaTile,
    Form,
    kernel_name,
    shared_bytes,
)
from tvm_moonpoly.planner.cuda.spec import Product
from tvm_moonpoly.planner.groups import ceil_div
from tvm_moonpoly.tuning.cuda.tasks import STEPS, misfit, shares, tasks

TILES = {
    "few rows": CudaTile(16, 64, 128, 1, 2, 3),
    "square": CudaTile(128, 128, 32, 2, 2, 3),
    "high": CudaTile(256, 64, 64, 4, 1, 3),
    "unaligned": CudaTile(64, 64, 64, 2, 2, 2, epilogue="elements"),
}


@pytest.mark.parametrize("gpu", GPUS.values(), ids=list(GPUS))
@pytest.mark.parametrize("name", TILES)
@pytest.mark.parametrize("resident", [1, 3, 16])
def test_each_task_is_one_wave(gpu, name, resident):
    tile, form = TILES[name], Form(b_transposed=True, aligned=name != "unaligned")
    found = tasks(tile, form, gpu, resident)
    assert len(set(found)) == len(found)
    fits = shared_bytes(tile, form) <= gpu.architecture.block_shared_bytes
    assert all((misfit(task, gpu) is None) == fits for task in found)
    assert all(misfit(replace(task, k=task.k + 8), gpu) for task in found)
    assert {task.blocks for task in found} == set(shares(resident))
    for task in found:
        assert (task.kernel, task.form) == (kernel_name(tile, form), form.name)
        product = Product(task.m, task.n, task.k)
        blocks = ceil_div(product.m, tile.block_m) * ceil_div(product.n, tile.block_n)
        assert blocks == task.blocks * gpu.multiprocessors
        assert ceil_div(product.k, tile.block_k) == task.steps
        assert max(task.m, task.n) * task.k < MAX_OPERAND_ELEMENTS // 4
        odd = 0 if form.aligned else 1
        assert (task.n % 8 == 0, task.k % 8 == 0) == (not odd, not odd)
    for blocks in shares(resident):
        steps = [task.steps for task in found if task.blocks == blocks]
        assert len(steps) == len(STEPS) and steps == sorted(set(steps))
        assert steps[-1] >= 64
    assert json.loads(json.dumps(found[0].to_json()))["form"] == form.name


def test_tiles_of_few_rows_are_measured_on_few_rows():
    gpu = GPUS["nvidia-h200"]
    assert {task.m for task in tasks(TILES["few rows"], Form(), gpu, 1)} == {16}
    assert max(task.m for task in tasks(TILES["few rows"], Form(), gpu, 16)) <= 256
    (first, *_) = tasks(TILES["square"], Form(), gpu, 1)
    assert 1 / 2 <= first.m / first.n <= 2


def test_numbers_of_blocks_that_are_measured():
    assert [shares(n) for n in (1, 2, 3, 8)] == [[1], [1, 2], [1, 2, 3], [1, 2, 4, 8]]
    with pytest.raises(ValueError, match="at least one block must fit"):
        tasks(TILES["square"], Form(), GPUS["nvidia-a100"], 0)
