"""The arithmetic of the GEMM benchmark against values worked out by hand, and its report."""

from __future__ import annotations

import json
import os

import pytest
from rich.console import Console

from bench.gemm import groups, report, summary
from bench.gemm.document import document
from bench.gemm.journal import BUSY, Journal, Measured, Record
from bench.gemm.peers import DEFAULT, DIRECT, VM
from bench.gemm.run import PEAK, READ
from bench.gemm.shapes import Shape

FAKE = Shape(33, 768, 768, layer="fake")
PEAK_FLOPS = 100_000  # in a microsecond: 100 GFLOP/s


def rounds_of(**peers: list[float]) -> dict[str, list[float]]:
    """Rounds in which ours takes 1 ms directly and 2 ms through the virtual machine."""
    count = len(next(iter(peers.values())))
    return {PEAK: [1e-6] * count, DIRECT: [1e-3] * count, VM: [2e-3] * count, **peers}


def row_of(shape: Shape = FAKE, allocating: tuple[str, ...] = (), **peers: list[float]) -> dict:
    return summary.summarise(Measured(shape, rounds_of(**peers)), allocating, PEAK_FLOPS, 1)


def test_best_peer_is_picked_on_one_half_and_compared_on_the_other():
    lucky = [0.5e-3, 4e-3, 0.5e-3, 4e-3]
    steady = [0.9e-3, 0.8e-3, 0.9e-3, 0.8e-3]
    row = row_of(openblas=lucky, onnxruntime=steady)
    assert row["best"] == "openblas"
    assert row["vs_best"] == pytest.approx(4.0)
    assert row["vs"] == pytest.approx({"openblas": 2.25, "onnxruntime": 0.85})


def test_a_peer_is_compared_with_ours_called_alike():
    row = row_of(allocating=("onednn_packed",), openblas=[3e-3] * 4, onednn_packed=[3e-3] * 4)
    assert row["vs"] == pytest.approx({"openblas": 3.0, "onednn_packed": 1.5})
    assert row["vs_best"] == pytest.approx(3.0)
    assert row["vs_best_vm"] == pytest.approx(1.5)


def test_a_chain_has_but_the_virtual_machine():
    seconds = {PEAK: [1e-6] * 2, VM: [2e-3] * 2, "onnxruntime": [3e-3] * 2}
    chain = Shape(1, 64, 64, workload="chain")
    row = summary.summarise(Measured(chain, seconds), ["moonpoly_vm"], PEAK_FLOPS, 1)
    assert row["vs_best"] == pytest.approx(1.5)
    assert row["gflops"] == row["gflops_vm"] == pytest.approx(chain.flops / 2e-3 / 1e9)


def test_ours_probes_and_hand_schedules_are_never_the_best_peer():
    names = (PEAK, READ, DIRECT, VM, DEFAULT, "tvm_hand")
    assert summary.best_peer({name: [1e-9] for name in names}) is None
    alone = summary.summarise(Measured(FAKE, rounds_of(tvm_hand=[1e-9])), [], PEAK_FLOPS, 1)
    assert alone["vs_best"] is None and alone["limit"] is None
    assert list(alone["vs"]) == ["tvm_hand"]
    assert summary.losses([alone]) == []


def test_a_loss_counts_when_its_upper_bound_is_below_the_floor():
    # Of 20 ratios to the best peer 10 are compared: the bounds are the 2nd and the 9th of them.
    compared = [0.80, 0.90, 0.91, 0.92, 0.93, 0.93, 0.94, 0.94, 0.949, 1.30]
    times = [each * 1e-3 for pair in zip([1.0] * 10, compared, strict=True) for each in pair]
    row = row_of(openblas=times)
    assert row["vs_best"] == pytest.approx(0.93)
    assert row["vs_best_bounds"] == pytest.approx([0.90, 0.949])
    assert row["loss"] is True
    times[17] = 0.951e-3
    row = row_of(openblas=times)
    assert row["vs_best_bounds"][1] == pytest.approx(0.951)
    assert row["loss"] is False
    assert summary.in_doubt([row]) == [FAKE.key]
    assert summary.in_doubt([row_of(openblas=[0.98e-3] * 4)]) == []


def test_fractions_of_peak_and_limit_are_paired_round_by_round():
    # The clock halves in the second half of the rounds: of ours and of the probe alike.
    seconds = {
        PEAK: [1e-6, 1e-6, 2e-6, 2e-6],
        DIRECT: [1e-3, 1e-3, 2e-3, 2e-3],
        VM: [1e-3, 1e-3, 2e-3, 2e-3],
        "openblas": [1.5e-3, 1.5e-3, 3e-3, 3e-3],
    }
    row = summary.summarise(Measured(FAKE, seconds), [], PEAK_FLOPS, 1)
    ideal = FAKE.flops / 100e9
    assert row["of_peak"] == pytest.approx(ideal / 1e-3)
    assert row["limit"] == pytest.approx(1.5e-3 / ideal)
    assert row["of_bandwidth"] is None


def test_reading_memory_bounds_few_rows():
    seconds = {**rounds_of(openblas=[1.5e-3] * 4), READ: [0.8e-3] * 4}
    row = summary.summarise(Measured(Shape(1, 768, 768), seconds), [], PEAK_FLOPS, 1)
    assert row["of_bandwidth"] == pytest.approx(0.8)
    assert row["limit"] == pytest.approx(1.5 / 0.8)


def test_default_kernels_are_a_column_of_their_own():
    assert row_of(openblas=[3e-3] * 4)["vs_default"] is None
    row = row_of(openblas=[3e-3] * 4, **{DEFAULT: [1.2e-3] * 4})
    assert row["best"] == "openblas"
    assert row["vs_default"] == pytest.approx(1.2)


# Groups


def sample_rows() -> list[dict]:
    def row(shape: Shape, ratio: float) -> dict:
        return row_of(shape, openblas=[ratio * 1e-3] * 12)

    return [
        row(Shape(1, 768, 768), 0.5),
        row(Shape(33, 768, 768), 2.0),
        row(Shape(512, 1024, 1024), 1.0),
        row(Shape(1, 768, 768, workload="row", constant=False), 1.2),
        row(Shape(2, 64, 64, source="random"), 3.0),
        {**row(Shape(33, 768, 768), 0.1), "mode": BUSY},
    ]


def test_groups_hold_their_rows_and_are_judged():
    found = {group["name"]: group for group in groups.summarise_groups(sample_rows())}
    linear = found["linear"]
    assert list(found) == [
        "linear",
        "linear, 10 MFLOP",
        "linear, 1 GFLOP",
        "one row",
        "random",
        BUSY,
    ]
    assert (linear["cases"], linear["losses"], linear["losses_that_count"]) == (3, 1, 1)
    assert linear["vs_best"] == pytest.approx((0.5 * 2.0 * 1.0) ** (1 / 3))
    assert linear["worst"] == {"key": Shape(1, 768, 768).key, "vs_best": pytest.approx(0.5)}
    assert linear["missed"] == ["ratio", "floor"]
    assert found["linear, 10 MFLOP"]["vs_best"] == pytest.approx(2**0.5)
    assert found["linear, 10 MFLOP"]["missed"] == []
    large = found["linear, 1 GFLOP"]
    assert large["of_peak"] == pytest.approx(2 * 512 * 1024**2 / 1e-3 / 100e9)
    assert large["missed"] == ["ratio"]
    assert found["one row"]["vs_best"] == pytest.approx((0.5 * 1.2) ** 0.5)
    assert found["random"]["missed"] is None
    assert found[BUSY]["cases"] == 1


def test_a_fraction_of_bandwidth_is_all_that_streams_must_reach():
    shape = Shape(1, 50257, 768, workload="stream")
    seconds = {**rounds_of(openblas=[0.5e-3] * 12), READ: [0.86e-3] * 12}
    row = summary.summarise(Measured(shape, seconds), [], PEAK_FLOPS, 1)
    (group,) = groups.summarise_groups([row])
    assert (group["name"], group["missed"], group["losses_that_count"]) == ("stream", [], 1)
    seconds[READ] = [0.84e-3] * 12
    row = summary.summarise(Measured(shape, seconds), [], PEAK_FLOPS, 1)
    assert groups.summarise_groups([row])[0]["missed"] == ["bandwidth"]


def test_classes_are_those_of_the_listed_linear_layers():
    found = groups.summarise_classes(sample_rows())
    assert [(one["name"], one["cases"]) for one in found] == [
        ("m=1", 1),
        ("m=18..100", 1),
        ("m=101..512", 1),
    ]


# Document and report


@pytest.fixture
def doc(tmp_path) -> dict:
    header = {"machine": {"cpu": "A CPU", "cores": 2, "caches": {"L1": "32K"}}, "versions": {}}
    given = [
        (Shape(33, 768, 768, layer="won"), {"openblas": [2e-3] * 12, "onednn_packed": [3e-3] * 12}),
        (Shape(1, 768, 768, layer="lost a bit"), {"openblas": [0.97e-3] * 12}),
        (Shape(1, 1024, 1024, layer="lost much"), {"openblas": [0.5e-3] * 12}),
    ]
    with Journal(tmp_path / "journal.jsonl", header) as journal:
        journal.note(
            1,
            {
                "candidates": {DIRECT: "direct", VM: "vm", "openblas": "mm", "onednn_packed": "p"},
                "allocating": [VM, "onednn_packed"],
                "absent": {"torch_mm": "ModuleNotFoundError: No module named 'torch'"},
                "peak_flops": PEAK_FLOPS,
                "clock": "a clock",
            },
        )
        for at, (shape, peers) in enumerate(given):
            absent = {"onednn_packed": "RuntimeError: no such primitive"} if at else {}
            journal.add(Record(shape, 1, rounds_of(**peers), absent, at=10.0 * at))
        with pytest.raises(ValueError, match="no case of 2 threads"):
            document(journal, 2)
        return json.loads(json.dumps(document(journal, 1), allow_nan=False))


def test_document_holds_header_note_rows_and_groups(doc):
    assert doc["machine"]["cpu"] == "A CPU" and doc["clock"] == "a clock"
    assert doc["peak_gflops"] == pytest.approx(100.0)
    assert doc["seconds_measured"] == 20.0
    assert [row["layer"] for row in doc["rows"]] == ["won", "lost a bit", "lost much"]
    for row in doc["rows"]:
        assert row["gflops"] == pytest.approx(2 * row["m"] * row["n"] * row["k"] / 1e-3 / 1e9)
        fields = {name: row[name] for name in Shape(1, 1, 1).to_json()}
        assert Shape.from_json(fields).key == row["key"]
    assert doc["rows"][0]["vs"]["onednn_packed"] == pytest.approx(1.5)
    assert doc["groups"][0]["cases"] == 3


def printed(doc: dict, **options) -> str:
    console = Console(width=250, record=True, file=open(os.devnull, "w"))  # noqa: SIM115
    report.print_document(console, doc, **options)
    return console.export_text()


def test_report_begins_with_the_losses_the_worst_first(doc):
    text = printed(doc)
    assert text.index("All losses: 2 of 3 cases; 1 count") < text.index("A CPU")
    losses = text[: text.index("A CPU")]
    assert losses.index("lost much") < losses.index("lost a bit")
    assert "won" not in losses
    lines = [line for line in losses.splitlines() if "/" in line]
    marked = {line.split("│")[3].strip(): "yes" in line for line in lines}
    assert marked == {"lost much": True, "lost a bit": False}
    assert "0.50..0.50" in losses


def test_report_names_absent_peers_targets_and_what_is_missed(doc):
    text = printed(doc, each=True)
    assert "absent: torch_mm: ModuleNotFoundError" in text
    assert "absent at 2 cases: onednn_packed: RuntimeError: no such primitive" in text
    assert "1.25" in text and "no: ratio, floor" in text
    assert "3 cases, 1 thread, 1 losses that count, FMA peak 100.0 GFLOP/s" in text
    assert text.count("linear/1x33x768x768/constant") == 1


def test_report_says_when_there_is_no_loss_and_when_there_is_no_peer(doc):
    console = Console(width=250, record=True, file=open(os.devnull, "w"))  # noqa: SIM115
    report.print_losses(console, doc["rows"][:1])
    report.print_losses(console, [{**doc["rows"][0], "vs_best": None}])
    text = console.export_text()
    assert "no losses" in text and "no peer was measured" in text
