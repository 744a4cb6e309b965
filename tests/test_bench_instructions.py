"""Counting instructions: callgrind's output read, calls and parts told apart, and one real run."""

from __future__ import annotations

import io
import json
import shutil
from collections import Counter
from pathlib import Path

import pytest
from rich.console import Console

from bench import callgrind, instructions, packed_calls
from bench.callgrind import Profile
from bench.instruction_calls import Job

# As callgrind 3.19 writes it, cut to a few functions: one file an object, calls with what the
# callee took, costs by line and by address, and an inlined piece of another source file.
SAMPLE = """\
# callgrind format
version: 1
creator: callgrind-3.19.0
pid: 21880
cmd:  ./driver ./library.so 8 1024 linear:1,33,384,384
part: 3


desc: Timerange: Basic block 4980 - 6437
desc: Trigger: Client Request: linear:1,33,384,384

positions: line
events: Ir
summary: 700


ob=/out/library.so
fl=./IRModule.CodeGenLLVM
fn=_internal_moonpoly_region
0 640
fi=???
cfn=_internal_moonpoly_row_blocks
calls=1 0
0 60
fe=./IRModule.CodeGenLLVM
0x24fc0 2

fn=_internal_moonpoly_row_blocks
0 19

ob=/lib/libtvm_runtime.so
fl=???
fn=TVMBackendAllocWorkspace
17 18
+3 4
cob=/lib/ld.so
cfi=./elf/tls_get_addr.S
cfn=__tls_get_addr
calls=2 30
17 22
* 2

ob=/lib/ld.so
fl=./elf/tls_get_addr.S
fn=__tls_get_addr
30 22

totals: 707
"""


def test_sample_is_read_by_function():
    profile = callgrind.parse(SAMPLE)
    assert profile.trigger == "linear:1,33,384,384"
    assert profile.own == {
        ("/out/library.so", "_internal_moonpoly_region"): 642,
        ("/out/library.so", "_internal_moonpoly_row_blocks"): 19,
        ("/lib/libtvm_runtime.so", "TVMBackendAllocWorkspace"): 24,
        ("/lib/ld.so", "__tls_get_addr"): 22,
    }
    assert profile.total == 707


def test_trigger_of_a_function_entry():
    text = SAMPLE.replace("Client Request: linear:1,33,384,384", "--dump-before=some_function")
    assert callgrind.parse(text).trigger == "some_function"


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ("totals: 707", "totals: 708", "add up to 707, not to 708"),
        ("totals: 707", "", "no complete profile"),
        ("events: Ir", "events: Ir Dr", "Ir alone"),
    ],
)
def test_a_text_that_does_not_fit_is_refused(old: str, new: str, complaint: str):
    with pytest.raises(ValueError, match=complaint):
        callgrind.parse(SAMPLE.replace(old, new))


def test_dumps_come_in_the_order_they_were_written(tmp_path: Path):
    for number in (10, 9, 11):
        text = SAMPLE.replace("linear:1,33,384,384", f"job {number}")
        (tmp_path / f"calls.{number}").write_text(text)
    (tmp_path / "calls").write_text("# what is left at the end of the program")
    found = callgrind.read_dumps(tmp_path, "calls")
    assert [profile.trigger for profile in found] == ["job 9", "job 10", "job 11"]


def profile(trigger: str, **own: int) -> Profile:
    return Profile(trigger, Counter({("library.so", name): n for name, n in own.items()}))


def test_calls_are_cut_after_their_job_and_the_driver_is_taken_out():
    noted = Profile("b", Counter({("/x/driver", "note"): 5, ("/x/library.so", "f"): 3}))
    calls = instructions.split_calls([profile("table"), profile("a", f=2), noted], {"a", "b"})
    assert [[p.trigger for p in call] for call in calls] == [["table", "a"], ["b"]]
    assert calls[1][0].total == 3
    assert instructions.split_calls([profile("termination")], {"a"}) == []


def test_parts_of_a_call():
    entry = "__tvm_ffi_moonpoly_matmul_f32"
    call = [
        profile(packed_calls.PLAN, **{entry: 100}),
        profile(
            packed_calls.REGION,
            _internal_moonpoly_plan=10,
            _internal_moonpoly_with_blocks=20,
            _internal_moonpoly_group_cost_3=30,
            **{entry: 200},
        ),
        profile("job", _internal_moonpoly_region=7),
    ]
    assert instructions.parts(call) == {
        "checks": 100,
        "planning": 60,
        "sharing": 200,
        "region": 7,
    }


def test_missing_valgrind_is_one_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr(shutil, "which", lambda name: None)
    assert instructions.main([]) == 1
    said = capsys.readouterr().out.strip()
    assert said == (
        "bench.instructions: valgrind is missing; install it, for example: apt-get install valgrind"
    )


def test_json_into_no_folder_is_refused(tmp_path: Path):
    with pytest.raises(SystemExit):
        instructions.main(["--json", str(tmp_path / "none" / "out.json")])


@pytest.mark.skipif(shutil.which("valgrind") is None, reason="valgrind is not installed")
def test_counts_are_positive_consistent_and_the_same_again(tmp_path: Path):
    target = packed_calls.measurable_target()
    driver = packed_calls.build_driver(tmp_path)
    library = packed_calls.named_library(target, tmp_path)
    jobs = [Job("linear", 33, 384, 384), Job("plain", 20, 64, 48), Job("scores", 9, 33, 64, 2)]
    counts = instructions.count(jobs, driver, library, tmp_path)
    assert [count.job for count in counts] == jobs
    for count in counts:
        assert count.first >= count.later > 0
        assert count.planner > 0
        assert sum(count.parts.values()) == sum(count.functions.values()) == count.later
        assert count.parts["checks"] > 0
        assert count.parts["region"] > 0
        assert 0 <= count.runtime < count.later
    linear, plain, scores = counts
    # a table of plans saves the planner; nothing saves it for two operands that change
    assert linear.parts["planning"] == 0
    assert linear.ended_by in {"x", "packed", "bias", "out"}
    for product in (plain, scores):
        # plan_rows is of another part of the library, where the same planner is compiled apart
        assert abs(product.planner - product.parts["planning"]) < product.planner / 10
        assert product.ended_by in {"a", "b", "out"}
    assert instructions.count(jobs, driver, library, tmp_path) == counts

    console = Console(width=240, record=True, file=io.StringIO())
    doc = instructions.document(counts, str(target))
    instructions.print_document(console, json.loads(json.dumps(doc)))
    text = console.export_text()
    for count in counts:
        assert f" {count.later} " in text
