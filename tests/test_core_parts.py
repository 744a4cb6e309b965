"""The parts of the operator library: what each defines, which ones are attached, and that they can
be linked together."""

from __future__ import annotations

import shutil
from itertools import combinations

import numpy as np
import pytest
import tvm
from conv_testing import Case, call, check
from core_testing import Weight, check_linear, linear, tensor, values
from relax_testing import module
from tvm import relax
from tvm.script import relax as R

from relax_passes import pipeline
from tvm_moonpoly import operators
from tvm_moonpoly.operators import OperatorLibrary, parts, parts_of
from tvm_moonpoly.operators.conv_constants import ConvSpec
from tvm_moonpoly.operators.parts import PARTS, Part, functions

BY_NAME = {part.name: part for part in PARTS}


@pytest.fixture(scope="module")
def library(target):
    return operators.library(target)


@pytest.mark.parametrize("part", PARTS, ids=lambda part: part.name)
def test_a_part_defines_its_entries_and_calls_nothing_of_others(library, part):
    defined = functions(library.machine, library.table, part.name)
    made = defined.module()  # raises where a function is called that is not defined
    public = {str(f.attrs["global_symbol"]) for f in made.functions.values() if _is_public(f)}
    assert public == {*part.entries, defined.failing}


def _is_public(function):
    return "global_symbol" in function.attrs


def test_parts_that_are_attached_together_export_nothing_twice():
    for a, b in combinations(PARTS, 2):
        common = set(a.entries) & set(b.entries)
        assert not common or common == set(a.entries), "a part that contains another is behind it"


def test_the_parts_of_calls():
    assert parts_of(["moonpoly_conv2d_f16", "moonpoly_linear_f32", "moonpoly_matmul_f32"]) == [
        "gemm",
        "conv",
    ]
    assert parts_of(["vm.builtin.shape_of", "moonpoly_unheard_of"]) == []


def test_a_part_that_contains_another_one_stands_for_both(monkeypatch):
    larger = Part("larger", (*BY_NAME["gemm"].entries, "moonpoly_more"), lambda *_: None)
    monkeypatch.setattr(parts, "PARTS", (*PARTS, larger))
    product, conv = "moonpoly_matmul_f32", "moonpoly_conv2d_f32"
    assert parts_of([product, conv]) == ["gemm", "conv"]
    assert parts_of(["moonpoly_more"]) == ["larger"]
    assert parts_of([product, conv, "moonpoly_more"]) == ["conv", "larger"]


def test_a_function_that_is_not_there(library):
    with pytest.raises(KeyError, match="moonpoly_unheard_of"):
        library.module["moonpoly_unheard_of"]


def attached(mod, target, **options):
    """The modules of the library in the executable of ``mod``."""
    after = []

    @tvm.transform.module_pass(opt_level=0)
    def look(mod, _ctx):
        after.append(mod)
        return mod

    with target:
        tvm.transform.Sequential([pipeline(target, **options), look])(mod)
    mods = (after[0].attrs or {}).get("external_mods") or []
    library = operators.library(target).module
    return [each for each in mods if library.has(each)]


W, KERNEL, DEPTHS = (
    relax.const(np.ones(s, "float32")) for s in ((8, 5), (4, 8, 1, 1), (8, 1, 3, 3))
)


@R.function
def product(x: R.Tensor(("n", 8), "float32")):
    with R.dataflow():
        y = R.matmul(x, W)
        R.output(y)
    return y


@R.function
def doubles(x: R.Tensor(("n", 8), "float64"), y: R.Tensor((8, 5), "float64")):
    with R.dataflow():
        z = R.matmul(x, y)
        R.output(z)
    return z


@R.function
def convolution(x: R.Tensor(("n", 8, "h", "w"), "float32")):
    with R.dataflow():
        y = R.nn.conv2d(x, KERNEL)
        R.output(y)
    return y


@R.function
def both(x: R.Tensor(("n", 8, "h", "w"), "float32")):
    with R.dataflow():
        y = R.nn.conv2d(x, DEPTHS, padding=1, groups=8)
        z = R.matmul(R.permute_dims(y, [0, 2, 3, 1]), W)
        R.output(z)
    return z


@pytest.mark.parametrize(
    "func,expected",
    [
        (product, ["gemm"]),
        (doubles, ["plain"]),
        (convolution, ["conv"]),
        (both, ["gemm", "depthwise"]),
    ],
)
def test_an_executable_takes_in_what_it_calls(target, func, expected):
    library = operators.library(target).module
    for names, verify in ((expected, False), ([*expected, "verify"], True)):
        found = attached(module(func), target, verify=verify)
        assert len(found) == len(names)
        assert all(library.part(name) in found for name in names)


@pytest.mark.skipif(not shutil.which("g++"), reason="no C++ compiler")
def test_parts_beside_one_another_in_process_and_exported(target, tmp_path):
    """Three LLVM modules of ours in one executable, which fail apart."""
    executable = tvm.compile(module(both), target, relax_pipeline=pipeline(target, verify=True))
    path = tmp_path / "model.so"
    executable.export_library(str(path))
    x = values(np.random.default_rng(3), 2, 8, 5, 4)
    for each in (executable, tvm.runtime.load_module(str(path))):
        result = relax.VirtualMachine(each, tvm.cpu())["main"](tensor(x)).numpy()
        assert result.shape == (2, 5, 4, 5)
        padded = np.pad(x.astype("float64"), ((0, 0), (0, 0), (1, 1), (1, 1)))
        sums = sum(padded[:, :, i : i + 5, j : j + 4] for i in range(3) for j in range(3))
        expected = np.repeat(sums.sum(axis=1)[..., None], 5, axis=-1)
        np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.skipif(not shutil.which("g++"), reason="no C++ compiler")
def test_all_parts_in_one_shared_library(library, tmp_path):
    path = tmp_path / "library.so"
    library.module.export_library(parts_of(n for part in PARTS for n in part.entries), path)
    linked = OperatorLibrary(library.machine, library.table, tvm.runtime.load_module(str(path)))
    rng = np.random.default_rng(4)
    weight = Weight.of(linked, values(rng, 9, 21), values(rng, 21))
    x = values(rng, 5, 9)
    check_linear(linear(linked, x, weight), x, weight)
    case = Case.random(rng, ConvSpec((3, 3), 16, 24), 1, 9, 9)
    check(call(linked, case), case)
    # each part has an error of its own kind
    with pytest.raises(ValueError, match="^x: "):
        call(linked, case, x=np.zeros((1, 9, 9, 5), np.float32))
