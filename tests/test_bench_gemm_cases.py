"""Which cases the GEMM benchmark measures."""

from __future__ import annotations

from collections import Counter

import pytest

from bench.gemm import cases, linear_cases, random_cases
from bench.gemm.shapes import CLASSES, WORKLOADS, Shape

SEED = 3
ALL = cases.all_cases(SEED)


def listed(workload: str) -> list[Shape]:
    return [case for case in ALL if case.workload == workload and case.source == "list"]


def test_every_workload_is_there_and_no_case_twice():
    assert len({case.key for case in ALL}) == len(ALL)
    assert Counter(case.workload for case in ALL).keys() == set(WORKLOADS)
    assert 420 <= len(ALL) <= 520


def test_linear_cases_are_the_layers_within_the_bounds_and_a_few_larger():
    linear = listed("linear")
    assert 230 <= len(linear) <= 280
    larger = [case for case in linear if case.m > linear_cases.MOST_ROWS]
    assert [case.key for case in larger] == [case.key for case in linear_cases.LARGER]
    for case in linear:
        assert case.constant
        assert case.right_bytes <= linear_cases.MOST_WEIGHT_BYTES
        assert case in larger or case.flops <= linear_cases.MOST_FLOPS
    classes = Counter(case.group for case in linear)
    assert set(classes) == set(CLASSES) - {"attention"}
    assert min(classes.values()) >= 6
    assert sum(case.flops >= 1_000_000_000 for case in linear) >= 40
    assert {case.m for case in linear} >= set(linear_cases.ROWS)


def test_every_weight_of_the_file_is_measured_or_named_as_left_out():
    layers = linear_cases.read_layers()
    measured = {(case.n, case.k) for case in listed("linear")}
    absent = {(layer.n, layer.k) for layer in linear_cases.left_out()}
    models = {(layer.n, layer.k) for layer in layers if layer.source != linear_cases.DEEPBENCH}
    assert models <= measured | absent
    assert not measured & absent
    assert (128256, 4096) in absent


def test_sizes_of_deepbench_are_turned_to_rows_times_weight():
    # DeepBench's (M, N, K) = (1760, 16, 1760) and (3072, 4, 1024).
    sizes = {(case.m, case.n, case.k) for case in listed("linear")}
    assert {(16, 1760, 1760), (4, 3072, 1024)} <= sizes


def test_a_head_is_not_called_with_more_rows_than_its_line_says():
    heads = [case.m for case in listed("linear") if (case.n, case.k) == (32000, 2048)]
    assert len(heads) == 5
    assert max(heads) <= 64


def test_files_that_are_not_such_a_list_are_refused(tmp_path):
    file = tmp_path / "layers.csv"
    file.write_text("source,set,layer,n,k,rows\nhere,model,layer,8,four,1:3\n")
    with pytest.raises(ValueError, match="four"):
        linear_cases.read_layers(file)
    file.write_text("source,set,layer,n,k,rows\nhere,model,layer,8,4,1:3\n")
    (layer,) = linear_cases.read_layers(file)
    assert (layer.name, layer.n, layer.k, layer.rows) == ("model layer", 8, 4, (1, 3))


def test_dynamic_cases_hold_the_hard_ones():
    dynamic = listed("dynamic")
    assert all(case.dynamic and case.m >= 2 and case.batch == 1 for case in dynamic)
    wide = [case for case in dynamic if 3072 <= case.n <= 4096 and case.m <= 32]
    assert len(wide) >= 8
    far = [case for case in dynamic if (case.row_stride or case.row_length) * 4 % (16 << 10) == 0]
    assert len(far) >= 8
    assert any(case.row_stride and case.row_stride > case.row_length for case in far)
    assert sum(case.transposed for case in dynamic) >= 12


def test_single_rows_come_with_every_kind_of_row_stride():
    row = listed("row")
    assert all(case.m == 1 for case in row)
    assert any(case.constant for case in row)
    for transposed in (False, True):
        new = [case for case in row if case.dynamic and case.transposed == transposed]
        strides = [case.row_stride for case in new]
        assert None in strides
        assert any(stride and stride % 2 for stride in strides)
        assert any(stride and stride % 1024 == 0 and stride % 4096 for stride in strides) or (
            transposed
        )
        assert any(stride and stride % 4096 == 0 for stride in strides)


def test_attention_has_both_products_of_every_model():
    attention = listed("attention")
    assert {case.batch for case in attention} == {12, 14, 16, 32}
    assert {case.k if case.transposed else case.n for case in attention} == {64, 128}
    lengths = {case.n if case.transposed else case.k for case in attention}
    assert min(lengths) == 1 and max(lengths) == 2048
    assert sum(case.transposed for case in attention) * 2 == len(attention)
    assert any(case.m == 1 and lengths for case in attention)


def test_streamed_weights_do_not_fit_a_cache():
    assert min(case.right_bytes for case in listed("stream")) >= 150_000_000
    assert {case.m for case in listed("stream")} == {1, 2, 4}


def test_fused_and_chained_cases():
    assert Counter(case.epilogue for case in listed("fused")).keys() == {
        "bias_gelu",
        "bias_residual",
    }
    assert len(listed("fused")) == 24
    assert all(case.n == case.k <= 384 for case in listed("chain"))


def test_the_quick_run_has_some_of_everything_and_is_small():
    quick = cases.quick_cases(SEED)
    assert {case.workload for case in quick} == set(WORKLOADS)
    assert {case.key for case in quick} <= {case.key for case in ALL}
    assert 50 <= len(quick) <= 70
    # What the four minutes of the quick run rest on.
    assert sum(case.flops for case in quick) < 30e9
    linear = {case.group for case in quick if case.workload == "linear"}
    assert linear == set(CLASSES) - {"attention"}


# Random cases


def test_a_seed_draws_the_same_cases_again_and_another_draws_others():
    first = [case.key for case in random_cases.random_cases(7)]
    assert first == [case.key for case in random_cases.random_cases(7)]
    assert len(set(first) & {case.key for case in random_cases.random_cases(8)}) < 5


def test_random_cases_are_bounded_and_of_every_kind():
    drawn = [case for seed in range(20) for case in random_cases.random_cases(seed)]
    assert Counter(case.workload for case in drawn) == {
        name: 20 * count for name, count in random_cases.COUNTS.items()
    }
    assert all(case.source == "random" for case in drawn)
    assert max(case.flops for case in drawn) <= random_cases.MOST_FLOPS
    linear = [case for case in drawn if case.workload == "linear"]
    assert all(64 <= case.n <= 4096 and 64 <= case.k <= 4096 for case in linear)
    assert all(1 <= case.m <= 1024 for case in linear)
    assert sum(case.m <= 32 for case in linear) == pytest.approx(len(linear) / 2, rel=0.2)
    dynamic = [case for case in drawn if case.workload == "dynamic"]
    assert any(case.row_stride for case in dynamic) and any(not case.row_stride for case in dynamic)
    assert any(case.transposed for case in dynamic)
