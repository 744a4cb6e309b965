"""The measuring protocol, on clocks that only move when the measured code moves them."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest

from bench import measure


class FakeClock:
    """Time that passes only in ``work``."""

    def __init__(self) -> None:
        self.now = 0.0
        self.calls: list[str] = []

    def __call__(self) -> float:
        return self.now

    def work(self, name: str, seconds: float):
        def run() -> None:
            self.calls.append(name)
            self.now += seconds

        return run


def test_interleave_reports_seconds_per_call_whatever_the_repeats():
    clock = FakeClock()
    runners = {"fast": clock.work("fast", 1e-4), "slow": clock.work("slow", 0.5)}
    seconds = measure.interleave(runners, rounds=3, min_seconds=0.01, clock=clock)
    assert seconds["fast"] == pytest.approx([1e-4] * 3)
    assert seconds["slow"] == pytest.approx([0.5] * 3)
    # A call longer than the wanted sample is never repeated: one warm-up and one call a round.
    assert clock.calls.count("slow") == 4


def test_interleave_rotates_and_reverses_the_order():
    clock = FakeClock()
    runners = {name: clock.work(name, 1.0) for name in "abc"}
    measure.interleave(runners, rounds=4, min_seconds=0.5, clock=clock)
    assert "".join(clock.calls) == "abc" + "abc" + "acb" + "cab" + "cba"


def test_short_calls_are_warmed_up_before_each_later_sample():
    clock = FakeClock()
    runners = {"short": clock.work("s", 0.04), "long": clock.work("l", 0.06)}
    seconds = measure.interleave(runners, rounds=3, min_seconds=0.01, clock=clock)
    assert "".join(clock.calls) == "sl" + "sl" + "ss" + "l" + "ss" + "l"
    assert seconds["short"] == pytest.approx([0.04] * 3)


def test_long_calls_get_fewer_rounds_but_as_many_forwards_as_backwards():
    clock = FakeClock()
    runners = {"a": clock.work("a", 1.0), "b": clock.work("b", 2.0)}
    seconds = measure.interleave(
        runners, rounds=20, min_seconds=0.5, clock=clock, max_seconds=10, fewest=2
    )
    # Four rounds of 3 seconds: after three they have taken less, but rounds come in pairs.
    assert [len(times) for times in seconds.values()] == [4, 4]
    seconds = measure.interleave(
        runners, rounds=20, min_seconds=0.5, clock=clock, max_seconds=1, fewest=6
    )
    assert [len(times) for times in seconds.values()] == [6, 6]


def test_samples_are_long_enough():
    clock = FakeClock()
    marks: list[float] = []

    def watched() -> float:
        marks.append(clock.now)
        return clock.now

    each, repeats = measure.sample(clock.work("x", 0.003), 1, 0.02, watched)
    assert each == pytest.approx(0.003)
    assert repeats * 0.003 >= 0.02
    lengths = [after - before for before, after in pairwise(marks)]
    assert lengths[-1] >= 0.02


def test_a_clock_that_stands_still_ends_the_calibration(monkeypatch):
    monkeypatch.setattr(measure, "MAX_REPEATS", 100)
    each, repeats = measure.sample(lambda: None, 1, 1.0, lambda: 0.0)
    assert (each, repeats) == (0.0, 100)


def test_no_runners_no_times():
    assert measure.interleave({}, rounds=2, min_seconds=0.0, clock=FakeClock()) == {}


@pytest.mark.parametrize(("rounds", "seconds"), [(0, 0.1), (-1, 0.1), (1, -0.1)])
def test_interleave_refuses_bad_arguments(rounds, seconds):
    with pytest.raises(ValueError, match="rounds|min_seconds"):
        measure.interleave({}, rounds=rounds, min_seconds=seconds, clock=FakeClock())


def test_paired_ratio_cancels_a_machine_that_changes_speed():
    drift = [1.0, 2.0, 5.0, 1.0, 9.0]
    ratio = measure.paired_ratio([3.0 * d for d in drift], [2.0 * d for d in drift])
    assert ratio.median == pytest.approx(1.5)
    assert (ratio.low, ratio.high) == pytest.approx((1.5, 1.5))
    assert len(ratio.rounds) == 5


def test_paired_ratio_bounds_are_order_statistics():
    ours = [1.0] * 20
    ratio = measure.paired_ratio([float(i) for i in range(1, 21)], ours)
    # The textbook interval of the median of 20 values: the 6th smallest to the 6th largest.
    assert (ratio.low, ratio.median, ratio.high) == (6.0, 10.5, 15.0)
    assert str(ratio) == "10.50 [6.00, 15.00]"


@pytest.mark.parametrize(("count", "rank"), [(1, 0), (5, 0), (6, 0), (8, 0), (9, 1), (20, 5)])
def test_median_rank(count, rank):
    assert measure.median_rank(count) == rank


@pytest.mark.parametrize(("peer", "ours"), [([], []), ([1.0], []), ([1.0], [0.0]), ([-1.0], [1.0])])
def test_paired_ratio_refuses_bad_times(peer, ours):
    with pytest.raises(ValueError, match="peer and ours"):
        measure.paired_ratio(peer, ours)


def test_geomean():
    assert measure.geomean([2.0, 8.0]) == pytest.approx(4.0)
    assert math.isnan(measure.geomean([]))
    with pytest.raises(ValueError, match="positive"):
        measure.geomean([1.0, 0.0])


def test_losses_come_worst_first():
    def ratio(value: float) -> measure.Ratio:
        return measure.Ratio(value, value, value, (value,))

    found = measure.losses({"a": ratio(0.9), "b": ratio(1.0), "c": ratio(0.5), "d": ratio(2.0)})
    assert found == ["c", "a"]


def test_clock_for_one_thread_is_processor_time():
    clock, what = measure.clock_for(1)
    assert "processor time" in what
    before = clock()
    sum(range(200_000))
    assert clock() > before
    assert "wall" in measure.clock_for(2)[1]


def test_machine_facts_name_what_is_installed():
    facts = measure.machine_facts()
    assert facts["cpu"] and facts["cores"] >= 1
    assert "numpy" in facts["versions"] and "apache-tvm" in facts["versions"]
    assert all("internal_api" in pool for pool in facts["blas"])


def test_cpu_model_reads_the_first_entry(tmp_path):
    text = "processor : 0\nmodel name : Fast CPU\nmodel name : Other\n"
    (tmp_path / "cpuinfo").write_text(text)
    assert measure.cpu_model(tmp_path / "cpuinfo") == "Fast CPU"
    assert measure.cpu_model(tmp_path / "missing") != ""


def test_cpu_caches_skips_instruction_caches(tmp_path):
    for index, (kind, level, size) in enumerate(
        [("Data", "1", "32K"), ("Instruction", "1", "64K"), ("Unified", "2", "1024K")]
    ):
        entry = tmp_path / f"index{index}"
        entry.mkdir()
        for name, value in (("type", kind), ("level", level), ("size", size)):
            (entry / name).write_text(value + "\n")
    assert measure.cpu_caches(tmp_path) == {"L1": "32K", "L2": "1024K"}
    assert measure.cpu_caches(tmp_path / "none") == {}


def test_versions_of_missing_packages_are_left_out():
    assert measure.installed_versions(["surely-not-installed-anywhere"]) == {}
