"""What runs on the machine with the GPU, on a device of numpy: wrong results are caught, nothing is
measured twice, one bad kernel is one failure."""

from __future__ import annotations

import ast
import json
import sys
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from gpu_testing import (
    COLD_FACTOR,
    FakeDevice,
    FakePeer,
    case,
    kernel,
    library,
    make_setting,
    product,
)

from bench.gpu.runner import document, journal, memory, numbers, parts
from bench.gpu.runner.device import DeviceLost, GpuFacts, NoGpu
from bench.gpu.runner.journal import Journal
from bench.gpu.runner.measure import measure
from bench.gpu.runner.operands import Pool
from bench.gpu.runner.reference import TorchReference
from bench.gpu.runner.supervise import supervise
from bench.gpu.runner.timing import paired_ratio

RUNNER = Path(parts.__file__).parent


def quiet(text: str) -> None:
    """Progress that nobody reads."""


def test_it_imports_only_what_is_there():
    allowed = {*sys.stdlib_module_names, "numpy", "bench"}
    for path in (*RUNNER.glob("*.py"), RUNNER.parent / "run.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                names = [node.module or ""]
            for name in names:
                assert name.split(".")[0] in allowed, f"{path.name}: {name}"
                if name.startswith("bench"):
                    assert name.startswith("bench.gpu.runner"), f"{path.name}: {name}"


def test_bfloat16_is_rounded_as_it_should_be():
    values = np.random.default_rng(0).standard_normal(4096).astype(np.float32)
    # ties, which go to the even one
    values[:4] = [1 + 2**-8, 1 + 3 * 2**-8, -1 - 2**-8, 0.0]
    expected = values.astype(ml_dtypes.bfloat16)
    got = numbers.from_float32(values, "bfloat16")
    np.testing.assert_array_equal(got, expected.view(np.uint16))
    np.testing.assert_array_equal(numbers.to_float32(got, "bfloat16"), expected.astype(np.float32))


FORMS = [
    {},
    {"b_transposed": False},
    {"dtype_in": "bfloat16", "dtype_out": "bfloat16"},
    {"dtype_out": "float32"},
    {"bias": True, "activation": "gelu"},
    {"b_transposed": False, "bias": True, "residual": True, "activation": "silu"},
    {"residual": True, "activation": "gelu_tanh"},
]
LAYOUTS = [
    {},
    {"pad": {"a": 3, "b": 5, "c": 2, "residual": 1}},
    {"shift": 1},
    {"shared": True},
]


@pytest.mark.parametrize("form", FORMS, ids=str)
def test_right_results_are_right(tmp_path, form):
    entry = library(**form)
    sizes = [(1, 1, 1, 1), (2, 37, 70, 33), (1, 5, 300, 0), (3, 130, 64, 96)]
    cases = [case(entry, *each, **layout) for each in sizes for layout in LAYOUTS]
    cases += [case(entry, 6, 37, 70, 33, heads=3), case(entry, 2, 5, 64, 0, heads=1)]
    setting = make_setting(tmp_path, [entry])
    for each in cases:
        found = parts.correct(setting, each)
        assert found["right"], found
        assert found["worst"] <= 1


def drops_a_term(a, b, c):
    product(library())(a[:, :, :-1], b[:, :, :-1], c)


def leaves_a_row(a, b, c):
    product(library())(a[:, :-1], b, c[:, :-1])


def swaps_columns(a, b, c):
    product(library())(a, b[:, ::-1], c)


def takes_another_batch(a, b, c):
    product(library())(a[::-1], b, c)


def adds_a_little(a, b, c):
    product(library())(a, b, c)
    c[..., -1] *= np.float16(1.01)


def makes_a_nan(a, b, c):
    product(library())(a, b, c)
    c[0, 0, 0] = np.nan


def writes_behind_a_row(a, b, c):
    product(library())(a, b, c)
    wide = np.lib.stride_tricks.as_strided(c, (*c.shape[:2], c.shape[2] + 1), c.strides)
    wide[0, 1, -1] = 0


def swaps_heads(a, b, c):
    product(library())(a[:, ::-1], b, c)


@pytest.mark.parametrize("torch", [False, True])
def test_heads_in_another_order_are_wrong(tmp_path, torch):
    entry = library()
    setting = make_setting(tmp_path, [entry], functions={entry["by_axes"]: with_codes(swaps_heads)})
    if torch:
        reference = TorchReference(setting.device, pytest.importorskip("torch"))
        object.__setattr__(setting, "reference", reference)
    assert not parts.correct(setting, case(entry, 4, 33, 64, 40, heads=2))["right"]


def with_codes(function):
    """A function of tensors, called with the codes of their axes as well."""
    return lambda a, b, *rest: function(a, b, *(x for x in rest if isinstance(x, np.ndarray)))


FAULTS = [
    drops_a_term,
    leaves_a_row,
    swaps_columns,
    takes_another_batch,
    adds_a_little,
    makes_a_nan,
    writes_behind_a_row,
]


def test_many_products_are_looked_at_here_and_there(tmp_path):
    entry = library()

    def stops_at_a_launch(a, b, c):
        product(entry)(a[:65535], b[:65535], c[:65535])

    setting = make_setting(tmp_path, [entry], functions={entry["function"]: stops_at_a_launch})
    assert parts.correct(setting, case(entry, 65535, 1, 8, 8))["right"]
    assert not parts.correct(setting, case(entry, 65537, 1, 8, 8))["right"]


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("torch", [False, True])
def test_wrong_results_are_caught(tmp_path, fault, torch):
    entry = library()
    setting = make_setting(tmp_path, [entry], functions={entry["function"]: fault})
    if torch:
        reference = TorchReference(setting.device, pytest.importorskip("torch"))
        object.__setattr__(setting, "reference", reference)
    found = parts.correct(setting, case(entry, 2, 40, 96, 64, pad={"c": 2}))
    assert not found["right"] and found["reason"]


@pytest.mark.parametrize("form", [f for f in FORMS if f.get("dtype_in") != "bfloat16"], ids=str)
def test_torch_finds_right_results_right(tmp_path, form):
    torch = pytest.importorskip("torch")
    entry = library(**form)
    setting = make_setting(tmp_path, [entry])
    object.__setattr__(setting, "reference", TorchReference(setting.device, torch))
    for sizes in ((1, 1, 1, 1), (2, 37, 70, 33), (3, 130, 64, 96)):
        for layout in LAYOUTS:
            found = parts.correct(setting, case(entry, *sizes, **layout))
            assert found["right"], found
    found = parts.correct(setting, case(entry, 6, 37, 70, 33, heads=3))
    assert found["right"], found


def test_a_kernel_alone_and_plans_of_two_regions_make_whole_results(tmp_path):
    entry = library()
    setting = make_setting(tmp_path, [entry])
    small, large = (each["name"] for each in entry["kernels"])
    whole = case(entry, 1, 100, 130, 64, launches=[[small, 0, 0, 7, 3]])
    assert parts.correct(setting, whole)["right"]
    two = [[large, 0, 0, 1, 3], [small, 64, 0, 3, 3]]
    assert parts.correct(setting, case(entry, 1, 100, 130, 64, launches=two))["right"]
    gap = [[large, 0, 0, 1, 3], [small, 80, 0, 2, 3]]
    assert not parts.correct(setting, case(entry, 1, 100, 130, 64, launches=gap))["right"]


TASK = {"form": "nt", "blocks": 1, "steps": 4, "m": 64, "n": 256, "k": 128}


def everything(folder, **more):
    """A setting of a bundle with something of each part."""
    entry = library()
    small, large = (each["name"] for each in entry["kernels"])
    plans = [
        {"launches": [[small, 0, 0, 8, 4]], "chosen": True, "predicted": 1e-5},
        {"launches": [[large, 0, 0, 2, 4]], "chosen": False, "predicted": 2e-5},
    ]
    given = {
        "cases": {
            "correct": [case(entry, 1, m, 64, 32) for m in range(1, 9)],
            "speed": [case(entry, 1, m, 64, 32, what="layer") for m in (1, 200)],
            "planner": [case(entry, 1, 128, 256, 64, plans=plans)],
        },
        "tasks": [{"kernel": name, **TASK} for name in (small, large)],
        "peer": lambda device: FakePeer(device, 2e-5),
    }
    return make_setting(folder, [entry], **{**given, **more})


def measured(setting, folder, names=tuple(parts.PARTS), seconds=1e6, clock=lambda: 0.0):
    """The document of a run, and whether it is complete."""
    lines = Journal(folder / "results.jsonl", "d1")
    lines.note("gpu", {"name": "A GPU of numpy", "arch": "sm_90"})
    complete = measure(setting, lines, names, seconds, quiet, clock)
    return document.document(setting.bundle, lines.records), complete


@pytest.fixture(autouse=True)
def small_peak(monkeypatch):
    monkeypatch.setattr(parts, "PEAK_SIDE", 64)


def times(name, shape):
    return {"f16_nt_small": 1e-5, "f16_nt_large": 4e-5}.get(name, 1e-5 if shape[1] > 1 else 4e-5)


def test_all_parts_make_one_document(tmp_path):
    found, complete = measured(everything(tmp_path, seconds=times), tmp_path)
    assert complete and found["failures"] == []
    assert found["format"] == 1 and found["bundle"] == "d1"
    correct = found["correct"]
    assert (correct["checked"], correct["cases"], correct["wrong"]) == (8, 8, [])
    tasks = {task["kernel"]: task for task in found["tasks"]}
    assert tasks["f16_nt_small"]["seconds"] == pytest.approx(1e-5)
    assert tasks["f16_nt_large"]["seconds"] == pytest.approx(4e-5)
    assert set(tasks["f16_nt_large"]) == {*TASK, "kernel", "seconds", "samples"}
    assert found["launch_seconds"] == pytest.approx(1e-5)
    win, loss = (next(c for c in found["speed"] if c["m"] == m) for m in (200, 1))
    assert win["warm"]["ratio"] == pytest.approx(2) and loss["warm"]["ratio"] == pytest.approx(0.5)
    assert win["cold"]["ours"] == pytest.approx(COLD_FACTOR * 1e-5)
    assert found["peak"]["f16_nt"]["warm"]["peer"] == pytest.approx(2e-5)
    (planned,) = found["planner"]
    assert [p["seconds"] for p in planned["plans"]] == pytest.approx([1e-5, 4e-5])
    assert document.best_share(planned) == 1.0
    text = "\n".join(document.summary(found))
    assert "8 of 8" in text and "1 wins and 1 losses" in text
    json.dumps(found)


def test_a_baseline_takes_part_where_there_is_one(tmp_path):
    seen = []

    def tvm(x, weight, out):
        seen.append((x.shape, weight.shape, out.shape))

    entry = library()
    setting = everything(tmp_path, functions={"matmul": tvm})
    item = case(entry, 1, 5, 64, 32, baseline="tvm_64x32")
    found = parts.speed(setting, item)
    assert set(seen) == {((5, 32), (32, 64), (5, 64))}
    assert found["warm"]["tvm"] == pytest.approx(1e-5) and "tvm" in found["host"]


def test_wrong_results_are_named_first(tmp_path):
    setting = everything(tmp_path, functions={"product_f16_nt": drops_a_term})
    found, _ = measured(setting, tmp_path, ["correct"])
    assert len(found["correct"]["wrong"]) == 8
    lines = document.summary(found)
    assert lines[0].startswith("correct: 0 of 8") and "WRONG f16_nt/1x1x64x32" in lines[1]


def test_a_second_run_goes_on_where_the_time_ended(tmp_path):
    calls = []

    def counted(*args):
        calls.append(args[-1].shape)
        product(library())(*args)

    setting = everything(tmp_path, functions={"product_f16_nt": counted})
    ticks = iter(range(1000))
    found, complete = measured(setting, tmp_path, ["correct"], 6.5, lambda: next(ticks))
    assert not complete and 0 < found["correct"]["checked"] < 8
    found, complete = measured(setting, tmp_path, ["correct"])
    assert complete and found["correct"]["checked"] == 8
    assert len(calls) == len(set(calls)) == 8


def test_parts_share_the_time_and_hand_on_what_they_do_not_need(tmp_path):
    now = [0.0]

    def slow(*args):
        now[0] += 10.0
        product(library())(*args)

    setting = everything(tmp_path, functions={"product_f16_nt": slow})
    # eight checks take 80 seconds; a share of 0.27 is less
    found, _ = measured(setting, tmp_path, seconds=200, clock=lambda: now[0])
    assert 5 <= found["correct"]["checked"] < 8
    assert len(found["tasks"]) == 2


def test_what_fails_is_written_down_and_the_rest_goes_on(tmp_path):
    def refuses(a, b, c):
        if c.shape[1] == 3:
            raise ValueError("m: 3 is refused")
        product(library())(a, b, c)

    setting = everything(tmp_path, functions={"product_f16_nt": refuses})
    found, complete = measured(setting, tmp_path, ["correct"])
    assert complete and found["correct"]["checked"] == 7
    (failure,) = found["failures"]
    assert failure["reason"] == "ValueError: m: 3 is refused"


def test_a_lost_device_ends_the_process_and_the_next_leaves_the_case_out(tmp_path):
    device = FakeDevice()

    def breaks(a, b, c):
        if c.shape[1] == 3:
            device.lost = True
            raise RuntimeError("CUDALaunch Error: an error that stays")
        product(library())(a, b, c)

    setting = everything(tmp_path, functions={"product_f16_nt": breaks}, device=device)
    with pytest.raises(DeviceLost):
        measured(setting, tmp_path, ["correct"])
    device.lost = False
    found, complete = measured(setting, tmp_path, ["correct"])
    assert complete and found["correct"]["checked"] == 7
    assert "an error that stays" in found["failures"][0]["reason"]


def test_what_the_device_has_no_room_for_is_left_out(tmp_path):
    entry = library()
    cases = {"correct": [case(entry, 1, 16, 4096, 4096), case(entry, 1, 16, 64, 64)]}
    setting = make_setting(tmp_path, [entry], cases, device=FakeDevice(room=70 << 20))
    found, complete = measured(setting, tmp_path, ["correct"])
    assert complete and found["correct"]["checked"] == 1
    assert found["failures"][0]["reason"].startswith("no room")


def test_without_a_peer_there_is_a_reason(tmp_path):
    said = []
    setting = everything(tmp_path, peer=None)
    lines = Journal(tmp_path / "results.jsonl", "d1")
    assert measure(setting, lines, ["speed"], 1e6, said.append)
    assert said == ["speed: left out: no torch"]


def test_a_journal_is_of_one_bundle_and_bears_a_cut_off_line(tmp_path):
    path = tmp_path / "results.jsonl"
    lines = Journal(path, "d1")
    lines.begin("correct", "a")
    lines.found("correct", "a", {"right": True})
    with path.open("a") as file:
        file.write('{"part": "corr')
    again = Journal(path, "d1")
    again.begin("correct", "b")
    assert again.done("correct") == {"a"} and again.pending() == ("correct", "b")
    assert journal.read(path) == again.records
    with pytest.raises(ValueError, match="of another bundle"):
        Journal(path, "d2")


WORKER = """
import json, os, sys, time
sys.path.insert(0, {root!r})
from bench.gpu.runner.journal import Journal
from pathlib import Path
lines = Journal(Path({path!r}), "d1")
for key in ("a", "b", "c"):
    if key in lines.done("correct"):
        continue
    lines.begin("correct", key)
    if key == "b":
        {end}
    lines.found("correct", key, {{"right": True}})
"""


@pytest.mark.parametrize(
    "end, reason", [("os.abort()", "the process died"), ("time.sleep(3600)", "no answer in 4 s")]
)
def test_a_process_that_dies_or_hangs_is_started_again(tmp_path, end, reason):
    path = tmp_path / "results.jsonl"
    root = str(RUNNER.parents[2])
    lines = Journal(path, "d1")
    code = WORKER.format(root=root, path=str(path), end=end)
    given = []

    def command(seconds):
        given.append(seconds)
        return [sys.executable, "-c", code]

    # so long that a process is started in time wherever this runs
    assert supervise(command, lines, 600.0, stall=4.0, say=quiet) == 0
    lines.refresh()
    assert lines.done("correct") == {"a", "b", "c"}
    (failed,) = [r for r in lines.records if "failed" in r]
    assert failed["key"] == "b" and reason in failed["failed"]
    assert len(given) == 2 and given[1] < given[0] <= 600.0


def test_a_process_that_cannot_measure_is_not_started_again(tmp_path):
    lines = Journal(tmp_path / "results.jsonl", "d1")
    starts = []

    def command(_):
        starts.append(1)
        return [sys.executable, "-c", "raise SystemExit(2)"]

    assert supervise(command, lines, 60.0, say=quiet) == 2 and len(starts) == 1


def test_ratios_are_of_pairs():
    # both slow down in the second round: the ratio does not
    assert paired_ratio([1.0, 10.0, 1.0], [2.0, 20.0, 2.0]) == 2.0


def test_the_pool_repeats_what_it_drew(tmp_path):
    device = FakeDevice()
    pool = Pool(device, drawn=101)
    address = pool.numbers("float16", 250)
    values = device.tensor(address, "float16", (303,), (1,)).copy()
    np.testing.assert_array_equal(values[:101], values[101:202])
    assert len(np.unique(values[:101])) > 90 and abs(values).max() <= 1
    assert pool.numbers("float16", 303) == address


def test_another_gpu_is_told(tmp_path):
    bundle = make_setting(tmp_path).bundle
    bundle.check_gpu(GpuFacts("H200", "sm_90", 132, 1, None, "", 1))
    with pytest.raises(NoGpu, match=r"for sm_90, this GPU \(A100\) is sm_80: .*make gpu-bundle"):
        bundle.check_gpu(GpuFacts("A100", "sm_80", 108, 1, None, "", 1))


def test_torch_takes_tensors_over_memory(monkeypatch):
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(memory, "CUDA", (1, 0))
    values = np.arange(40, dtype=np.float16)
    given = memory.DeviceTensor(values.ctypes.data, "float16", (2, 3, 4), (20, 5, 1))
    taken = torch.from_dlpack(given)
    assert taken.shape == (2, 3, 4) and taken.stride() == (20, 5, 1)
    taken[1, 2, 3] = 7
    assert values[33] == 7
    bits = np.zeros(4, np.uint16)
    brain = torch.from_dlpack(memory.DeviceTensor(bits.ctypes.data, "bfloat16", (4,), (1,)))
    brain[0] = 1.0
    assert bits[0] == 0x3F80


def test_kernels_of_numpy_compute_their_region():
    entry = library()
    a, b = np.ones((1, 40, 8), np.float16), np.ones((1, 70, 8), np.float16)
    c = np.zeros((1, 40, 70), np.float16)
    kernel(entry, entry["kernels"][0])(a, b, c, 16, 64, 1, 1)
    assert c[0, 16:32, 64:].min() == 8 and c.sum() == 8 * 16 * 6
