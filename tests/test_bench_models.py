"""The bench of whole networks: its sizes, figures, options and pages, without the libraries."""

from __future__ import annotations

import io
import json
import mmap

import numpy as np
import pytest
import tvm
from rich.console import Console
from tvm import relax, tirx, topi

from bench.engines import Engine
from bench.gemm.journal import Journal, Record
from bench.gemm.run import Effort
from bench.goals import in_doubt
from bench.models import (
    build,
    cli,
    functions,
    memory,
    networks_vit,
    page,
    session,
    summary,
    worker,
)
from bench.models.beside import BESIDE, PEERS, installed
from bench.models.build import ORT, OURS, PLAIN, TORCH, Artifact
from bench.models.cases import GROUPS, Case, all_cases, smallest
from bench.models.report import print_document
from bench.models.zoo import NETWORKS
from bench.pages import RESULTS, markers, read_documents, replace_section

# The sizes


def test_the_list_of_sizes():
    found = all_cases()
    assert len({case.key for case in found}) == len(found)
    for group in GROUPS.values():
        assert len(set(group.sizes)) >= 7 and group.network in NETWORKS
        assert all(len(size) == len(group.axes.split(", ")) for size in group.sizes)
        assert set(group.targets) == {1, 2} and max(group.quick) < len(group.sizes)
    quick = all_cases(quick=True)
    assert {case.group for case in quick} == set(GROUPS) and len(quick) == 3 * len(GROUPS)


def test_what_the_sizes_cover():
    batches, lengths = zip(*GROUPS["minilm"].sizes, strict=True)
    assert (min(batches), max(batches)) == (1, 8) and (min(lengths), max(lengths)) == (7, 512)
    numbers, widths = zip(*GROUPS["recogniser"].sizes, strict=True)
    assert (min(numbers), max(numbers)) == (1, 6) and (min(widths), max(widths)) == (96, 641)
    sizes = GROUPS["resnet"].sizes
    assert {size[0] for size in sizes} == {1, 4}
    sides = [side for size in sizes for side in size[1:]]
    assert (min(sides), max(sides)) == (160, 512)
    assert all(past == 0 for _, _, past in GROUPS["prefill"].sizes)
    assert all(seq == 1 and past > 0 for _, seq, past in GROUPS["decode"].sizes)


def test_a_case_is_kept_as_json():
    case = Case("decode", (2, 1, 333))
    assert Case.from_json(json.loads(json.dumps(case.to_json()))) == case
    assert case.key == "decode/2x1x333" and case.network == "decoder"
    assert case.flops == 2 * 60e6


def test_the_smallest_of_each_group():
    found = smallest(all_cases(["minilm", "prefill", "decode"]))
    assert [case.key for case in found] == ["minilm/1x7", "prefill/1x7x0", "decode/1x1x1"]


@pytest.mark.parametrize("name", ["vit", "decoder", "resnet"])
def test_inputs_are_the_same_each_time(name):
    size = next(group.sizes[0] for group in GROUPS.values() if group.network == name)
    first, second = (NETWORKS[name].feed(*size) for _ in range(2))
    for key, array in first.items():
        np.testing.assert_array_equal(array, second[key], strict=True)
        assert array.shape[0] == size[0]


# The figures


def record(case: Case, ours: float, theirs: float, mode: str = "quiet") -> Record:
    other = {peer.mode: peer.engine for peer in BESIDE}.get(mode, ORT)
    return Record(case, 1, {OURS: [ours] * 8, other: [theirs] * 8}, {}, mode)


@pytest.fixture
def journal(tmp_path):
    """A run of three sizes: a gain, a loss that counts, and one that does not."""
    header = {
        "machine": {"cpu": "A CPU", "cores": 2},
        "versions": {"onnxruntime": "1.32.0", "apache-tvm": "0.27", "torch": "2.13"},
    }
    with Journal(tmp_path / "j.jsonl", header, kind=Case) as found:
        mebi = 1 << 20
        sides = {"before": 100 * mebi, "peak": 150 * mebi}
        found.note(
            1,
            {
                "build_seconds": {
                    f"{OURS} vit": {"processor": 4.25},
                    f"{TORCH} vit": {"processor": 61.8, "graphs": 2, "sizes": 3},
                    f"{TORCH} decoder": {"failed": "too slow"},
                },
                "memory": {"vit": {OURS: sides, ORT: sides | {"peak": 175 * mebi}}},
            },
        )
        found.add(record(Case("vit", (1,)), 1e-3, 0.5e-3))
        found.add(record(Case("vit", (2,)), 1e-3, 2e-3))
        found.add(record(Case("decode", (1, 1, 1)), 1e-3, 0.95e-3))
        for size, peer, ratio in ((1, TORCH, 1.5), (2, TORCH, 0.9), (1, PLAIN, 40.0)):
            mode = next(one.mode for one in BESIDE if one.engine == peer)
            found.add(record(Case("vit", (size,)), 1e-3, ratio * 1e-3, mode))
        absent = {PLAIN: "too large"}
        found.add(Record(Case("vit", (8,)), 1, {OURS: [1e-3] * 8}, absent, "beside plain TVM"))
        yield found


def test_figures(journal):
    found = summary.document(journal, 1)
    assert found["losses"] == ["vit/1", "decode/1x1x1"]
    first, second, third = found["rows"]
    assert first["loss"] and not second["loss"]
    assert first["vs"] == {ORT: 0.5} and third["vs"] == {ORT: 2.0}
    ratios = {part["engine"]: [row["ratio"] for row in part["rows"]] for part in found["beside"]}
    assert ratios == {TORCH: pytest.approx([1.5, 0.9]), PLAIN: [pytest.approx(40), None]}
    vit, decode = found["groups"]
    assert vit["vs_best"] == pytest.approx(1) and not vit["met"] and vit["losses_that_count"] == 1
    assert vit["target"] == 1.10 and vit["build_seconds"] == {"processor": 4.25}
    assert decode["vs_best"] == pytest.approx(0.95) and decode["memory"] is None
    assert in_doubt(summary.rows_of(journal, 1)) == ["vit/1", "decode/1x1x1"]
    with pytest.raises(ValueError, match="no case of 2 threads"):
        summary.document(journal, 2)


def test_the_tables_print_everything(journal):
    console = Console(width=240, record=True, file=io.StringIO())
    print_document(console, summary.document(journal, 1), each=True)
    text = console.export_text()
    for wanted in (
        "2 of 3 sizes are slower",
        "1 count",
        "vit/1",
        "vit/2 (0.90, 0.90..0.90)",
        "4.2",
        "ViT-S/16",
        "75",
    ):
        assert wanted in text


def test_a_longer_case_is_expected_to_take_longer():
    effort = Effort(rounds=8, min_seconds=0.01, case_seconds=5, budget=60)
    times = [session.expected_seconds(Case("vit", (n,)), effort) for n in (1, 2, 8, 64)]
    assert times == sorted(times) and times[0] > 1


# The pages


def test_the_page_has_what_the_committed_results_give():
    docs = read_documents(sorted(RESULTS.glob("models-*-thread*")), summary.FORMAT)
    assert docs
    text = page.PAGE.read_text()
    made = page.section(docs, "../bench/results/models-losses.md")
    assert replace_section(text, made, "models") == text
    assert (RESULTS / "models-losses.md").read_text() == page.losses_page(docs)


def test_the_pages(journal, tmp_path):
    made = tmp_path / "1.json"
    document = summary.document(journal, 1)
    made.write_text(json.dumps({**document, "remark": "The machine was quiet."}))
    text, losses = tmp_path / "models.md", tmp_path / "losses.md"
    begin, end = markers("models")
    text.write_text(f"before\n{begin}\nold\n{end}\nafter\n")
    for _ in range(2):
        assert page.main([str(made), "--readme", str(text), "--losses", str(losses)]) == 0
    written = text.read_text()
    assert written.startswith(f"before\n{begin}\n") and written.endswith(f"{end}\nafter\n")
    flat = " ".join(written.split())
    assert "\nold\n" not in written and "time of onnxruntime 1.32.0 divided by ours" in flat
    assert "3 of the " in flat and "The machine was quiet." in flat
    assert "In brackets: at how many sizes torch.compile and plain TVM were timed." in flat
    assert "torch.compile 2.13, with dynamic shapes as ours, was timed beside ours on 2" in flat
    assert "and is faster in 1 of them: vit/2 (0.90, 0.90..0.90). To compile" in flat
    assert "of the processor: ViT-S/16 62 s (2 graphs for 3 sizes); decoder too slow." in flat
    assert "Plain TVM 0.27, with dynamic shapes as ours, was timed beside ours on 1 size," in flat
    assert "faster in 0 of them. Not timed on 1: too large." in flat
    goal = "| ViT-S/16 | 2 | **1.00** | 1.10, none < 0.92 | no: ratio, floor | 1 | 1 | 0.50 |"
    assert " | worst | vs torch.compile | vs plain TVM | build, s | " in written
    assert f"{goal} 1.16 (2) | 40.00 (1) | 4.2 | 50 | 75 |" in written
    assert "[All 2 of 3 sizes in which a library is faster](losses.md)" in flat
    page_of_losses = losses.read_text()
    assert "| yes | vit/1 | 0.50 | 0.50..0.50 | 8 | 1.00 | 0.50 |" in page_of_losses
    assert "2 sizes are slower, of which 1 count." in page_of_losses
    prose = [line for line in (written + page_of_losses).splitlines() if not line.startswith("|")]
    assert max(map(len, prose)) <= 100


# The options


def test_options():
    options = cli.parse(["--quick", "--models", "vit,decode", "--peers", "onnxruntime"])
    assert options.threads == [1] and options.peers == ("onnxruntime",)
    assert {case.group for case in options.cases} == {"vit", "decode"}
    assert cli.parse([]).threads == [1, 2] and len(cli.parse([]).cases) == len(all_cases())


def test_peers_are_those_that_are_installed(monkeypatch):
    monkeypatch.setattr(cli, "installed", lambda: installed(there=lambda name: name != "torch"))
    assert cli.parse([]).peers == (ORT, PLAIN)
    assert cli.parse(["--peers", TORCH]).peers == (TORCH,)
    assert installed(there=lambda name: True) == PEERS == (ORT, TORCH, PLAIN)


def test_slow_peers_are_measured_on_few_sizes():
    torch, plain = BESIDE
    cases = all_cases(["vit", "prefill", "decode"])
    assert plain.pick(cases) == smallest(cases)
    assert torch.pick(cases) == all_cases(["vit", "prefill", "decode"], quick=True)
    assert torch.pick([Case("vit", (8,))]) == []
    effort = Effort(rounds=12, min_seconds=0.01, case_seconds=5, budget=60)
    assert [peer.effort(effort).rounds for peer in BESIDE] == [6, 2]
    assert torch.effort(Effort(2, 0.01, 5, 60)).fewest == 2
    assert torch.effort(effort).rounds_left(spent=50, done=1, left=9) == 6  # whatever the time
    assert {peer.engine for peer in BESIDE} <= set(build.COMPILED)


@pytest.mark.parametrize(
    "arguments,message",
    [
        (["--models", "vit,bert"], "--models: unknown bert; known are minilm"),
        (["--peers", "torch"], "--peers: unknown torch"),
        (["--threads", "0"], "--threads takes"),
        (["--rounds", "1"], "--rounds must be at least 2"),
        (["--stop", "0"], "--stop must be positive"),
        (["--calls", "-1"], "--calls must not be negative"),
    ],
)
def test_options_that_are_wrong(arguments, message, capsys):
    with pytest.raises(SystemExit):
        cli.parse(arguments)
    assert message in " ".join(capsys.readouterr().err.split())


# The worker, and what is compiled


def test_a_wrong_result_is_not_timed(monkeypatch, tmp_path):
    def engine(value: float) -> Engine:
        return Engine("an engine", lambda feed: lambda: [np.full((2, 3), value)], 0.0)

    holder = worker.Candidates(OURS, 1, tmp_path)
    monkeypatch.setattr(holder, "_load", lambda network: None)
    monkeypatch.setattr(holder, "_reference", engine(2.0))
    case = Case("vit", (1,))
    for value, error in ((2.0, None), (2.0002, None), (2.001, "5.0e-04"), (np.nan, "inf")):
        monkeypatch.setattr(holder, "_loaded", engine(value))
        runs, absent = holder.prepare(case, 0)
        assert (OURS in runs) == (error is None) and len(runs) + len(absent) == 1
        if error is not None:
            assert absent[OURS] == f"error {error} of the largest output is above 1e-04"


def test_a_network_that_did_not_compile_is_left_out(monkeypatch, tmp_path):
    monkeypatch.setattr(worker, "run_onnxruntime", lambda model, threads: None)
    for engine in (TORCH, PLAIN):
        case, holder = Case("vit", (1,)), worker.Candidates(engine, 1, tmp_path)
        assert holder.prepare(case, 0) == ({}, {engine: "RuntimeError: it was not compiled"})
        Artifact(tmp_path, engine, "vit", 1).failure.write_text("no compiler")
        assert holder.prepare(case, 0) == ({}, {engine: "RuntimeError: no compiler"})


def test_a_size_that_fails_is_left_out(monkeypatch, tmp_path):
    def fails() -> None:
        raise ValueError("too many sizes")

    holder = worker.Candidates(TORCH, 1, tmp_path)
    monkeypatch.setattr(holder, "_load", lambda network: None)
    monkeypatch.setattr(holder, "_reference", Engine("another", lambda feed: fails, 0.0))
    monkeypatch.setattr(holder, "_loaded", Engine("an engine", lambda feed: fails, 0.0))
    assert holder.prepare(Case("vit", (1,)), 0) == ({}, {TORCH: "ValueError: too many sizes"})


def test_what_is_compiled_is_kept_by_the_state_of_the_compiler(tmp_path):
    header = {"machine": {"cpu": "a"}, "versions": {}, "library": "x", "target": "t", "code": "1"}
    folder = build.folder_for(tmp_path, header)
    assert folder.parent == tmp_path and folder == build.folder_for(
        tmp_path, header | {"code": "2"}
    )
    assert folder != build.folder_for(tmp_path, header | {"library": "y"})


def test_a_network_that_does_not_compile_is_told_of(tmp_path, monkeypatch):
    artifact = Artifact(tmp_path, OURS, "vit", 1)
    artifact.seconds.write_text(json.dumps({"wall": 2.0}))
    command = "import sys; sys.exit('no such network')"
    monkeypatch.setattr(build, "command", lambda artifact: [build.sys.executable, "-c", command])
    shown: list[str] = []
    found = build.build_missing([OURS], ["vit", "other"], 1, tmp_path, {}, shown.append)
    assert found == {f"{OURS} vit": {"wall": 2.0}, f"{OURS} other": {"failed": "no such network"}}
    assert shown == [f"other for {OURS}"]
    assert Artifact(tmp_path, OURS, "other", 1).failure.read_text() == "no such network"


def test_how_often_torch_compiled_is_told():
    built = {"processor": 71.6, "graphs": 5, "sizes": 6, "wall": 90.0}
    assert build.graphs_of(built) == "5 graphs for 6 sizes"


def test_a_network_that_takes_too_long_to_compile_is_told_of(tmp_path, monkeypatch):
    command = "import time; time.sleep(60)"
    monkeypatch.setattr(build, "command", lambda artifact: [build.sys.executable, "-c", command])
    monkeypatch.setattr(build, "LONGEST", 0.2)
    found = build.build_missing([TORCH], ["vit"], 1, tmp_path, {})
    assert found == {f"{TORCH} vit": {"failed": "compiling took longer than 0 s"}}


def test_resident_memory():
    size = 32 << 20
    before = memory.resident()
    with mmap.mmap(-1, size) as held:  # fresh pages: the allocator may hand out resident ones
        held.write(b"\1" * size)
        assert memory.resident() - before > size // 2
        assert memory.resident("VmHWM") >= memory.resident() - (1 << 20)
    with pytest.raises(RuntimeError, match="no VmNothing"):
        memory.resident("VmNothing")


# Where the time goes


def test_parts_are_the_least_of_sums():
    runs = [[("b", 1.0), ("a", 2.0), ("b", 3.0)], [("b", 3.0), ("a", 1.0), ("b", 3.0)]]
    found = functions.parts_of([*runs, [("b", 4.0), ("a", 9.0), ("b", 4.0)]])
    assert found == [functions.Part("b", 4.0, 2), functions.Part("a", 1.0, 1)]


def test_time_by_function_in_both():
    model = networks_vit.build(networks_vit.SMALL)
    feed = networks_vit.feed(networks_vit.SMALL, 2)
    theirs = functions.in_onnxruntime(model, 1, feed, calls=3)
    assert {"Softmax", "MatMul"} & {part.name for part in theirs}
    assert all(part.seconds > 0 and part.count > 0 for part in theirs)
    x = relax.Var("x", relax.TensorType((tirx.Var("n", "int64"), 5), "float32"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x]):
        builder.emit_func_output(builder.emit_te(topi.nn.softmax, x, primfunc_name_hint="soft"))
    executable = tvm.compile(builder.get(), tvm.target.Target({"kind": "llvm"}))
    ours = functions.in_tvm(executable, ["x"], {"x": np.ones((7, 5), np.float32)}, 1, calls=3)
    assert [part.count for part in ours if part.name == "soft"] == [1]
    assert {part.name for part in ours} >= {"soft", functions.MACHINE}
    assert not [part for part in ours if part.name.startswith(functions.BUILTIN)]
    assert ours == sorted(ours, key=lambda part: -part.seconds)
    console = Console(width=100, record=True, file=io.StringIO())
    console.print(functions.table("ours", ours, most=1))
    assert "others" in console.export_text()
