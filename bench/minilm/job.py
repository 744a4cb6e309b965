"""The main job: one executable of a real model at many sizes, checked and measured."""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from rich.console import Console

from bench.console import wide_console
from bench.measure import clock_for, interleave, machine_facts, paired_ratio
from bench.minilm import engines, report, sentences
from bench.minilm.engines import ORT, OURS, PLAIN, Engine
from bench.minilm.fetch import MODEL
from bench.minilm.graph import OUTPUTS, read_model
from bench.minilm.report import Case
from bench.minilm.sentences import Feed
from bench.wheels import fetch

TOLERANCE = 1e-4
FILE_WIDTH = 160
PLAIN_TOKENS = 128  # plain TVM takes about 25 ms a token
PLAIN_ROUNDS = 2
MIN_SECONDS = 0.01


@dataclass(frozen=True)
class Options:
    """What the command line chose."""

    threads: int = 1
    quick: bool = False
    rounds: int = 9
    json: Path | None = None


def main(options: Options, console: Console | None = None) -> int:
    """Runs the job and prints it; the exit status is 0 when every result is right.

    Raises FetchError when the model cannot be had.
    """
    import tvm_moonpoly as mp
    from relax_passes import Report

    console = console or wide_console(FILE_WIDTH)
    facts = machine_facts() | {"threads": f"{options.threads} for every engine"}
    facts["clock"] = clock_for(options.threads)[1]

    with console.status("Fetching the model (84 MB, once)"):
        folder = fetch(MODEL)
    model = read_model(folder)
    target = mp.detect_target(cores=options.threads)
    facts["target"] = str(target)
    console.print(report.facts_table(facts))

    mod = engines.import_model(model)
    notes = Report()
    found = {ORT: engines.run_onnxruntime(model, options.threads)}
    chosen = {OURS: mp.pipeline(target, report=notes)}
    chosen |= engines.pipelines(target, options.threads)
    for name, pipeline in chosen.items():
        with console.status(f"Compiling: {name}"):
            found[name] = engines.run_tvm(name, mod, target, pipeline)
    build_seconds = {name: engine.build_seconds for name, engine in found.items()}
    console.print(
        "Seconds to compile, once for all sizes: "
        + ", ".join(f"{name} {seconds:.1f}" for name, seconds in build_seconds.items())
    )

    tokenizer, texts = sentences.read_tokenizer(folder), sentences.read_texts()
    cases = []
    for batch, seq in sentences.QUICK_SIZES if options.quick else sentences.SIZES:
        with console.status(f"Running batch {batch}, seq {seq}"):
            feed = sentences.feed_of_size(tokenizer, texts, batch, seq)
            cases.append(run_case(found, feed, options))
    console.print(report.times_table(cases))
    for peer, mean in report.geomeans(cases).items():
        console.print(f"geometric mean, {peer} / {OURS}: {mean:.2f}")
    losses = report.loss_lines(cases)
    console.print(f"Losses, with the 95 % bounds of the ratio: {len(losses)}")
    for line in losses:
        console.print(f"  {line}", markup=False)
    console.print(report.operators_table(notes.entries))

    compared = list(sentences.COMPARED)
    outputs = results(found[OURS], sentences.encode(tokenizer, compared))
    similar = sentences.cosines(outputs[OUTPUTS.index("sentence_embedding")])
    console.print(report.cosines_table(compared, similar))

    if options.json:
        data = report.as_json(facts, cases, notes.entries, build_seconds)
        options.json.write_text(json.dumps(data, indent=1) + "\n")
    wrong = failures(cases, similar)
    for line in wrong:
        console.print(f"wrong: {line}", style="red", markup=False)
    if not wrong:
        worst = max(case.error for case in cases)
        console.print(f"All results equal onnxruntime's; the largest error is {worst:.1e}.")
    return 1 if wrong else 0


def results(engine: Engine, feed: Feed) -> list[np.ndarray]:
    """All outputs of one call."""
    return engines.as_arrays(engine.prepare(feed)())


def run_case(found: Mapping[str, Engine], feed: Feed, options: Options) -> Case:
    """Checks and measures all engines on one feed; plain TVM only when it is small."""
    batch, seq = feed["input_ids"].shape
    used = [name for name in found if name != PLAIN or batch * seq <= PLAIN_TOKENS]
    calls = {name: found[name].prepare(feed) for name in used}
    expected = engines.as_arrays(calls[ORT]())
    errors = {
        name: largest_error(engines.as_arrays(calls[name]()), expected)
        for name in used
        if name != ORT
    }
    clock, _ = clock_for(options.threads)
    fast = {name: call for name, call in calls.items() if name != PLAIN}
    times = interleave(fast, rounds=options.rounds, min_seconds=MIN_SECONDS, clock=clock)
    ratios = {name: paired_ratio(times[name], times[OURS]) for name in fast if name != OURS}
    if PLAIN in calls:
        # In rounds of its own: each of its calls lasts as long as whole rounds of the others.
        pair = {name: calls[name] for name in (OURS, PLAIN)}
        slow = interleave(pair, rounds=PLAIN_ROUNDS, min_seconds=MIN_SECONDS, clock=clock)
        times[PLAIN] = slow[PLAIN]
        ratios[PLAIN] = paired_ratio(slow[PLAIN], slow[OURS])
    seconds = {name: statistics.median(each) for name, each in times.items()}
    return Case(batch, seq, seconds, errors, ratios)


def largest_error(found: Sequence[np.ndarray], expected: Sequence[np.ndarray]) -> float:
    """Largest absolute difference over all outputs; infinite where a shape differs or NaN is."""
    worst = 0.0
    for ours, theirs in zip(found, expected, strict=True):
        if ours.shape != theirs.shape:
            return float("inf")
        error = float(np.abs(ours - theirs).max(initial=0.0))
        worst = max(worst, error if np.isfinite(error) else float("inf"))
    return worst


def failures(cases: Sequence[Case], similar: np.ndarray) -> list[str]:
    """What is wrong with the results, a line each: too large an error, meaningless embeddings."""
    wrong = [
        f"{case} {name}: error {error:.1e} is above {TOLERANCE:.0e}"
        for case in cases
        for name, error in case.errors.items()
        if not error <= TOLERANCE
    ]
    alike, others = similar[0, 1], similar[np.triu_indices(len(similar), 1)][1:]
    if not alike > others.max():
        wrong.append("the two sentences that mean the same are not the most similar ones")
    return wrong
