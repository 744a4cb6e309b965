"""The job: lines of many widths are read, the results checked and measured."""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image
from rich.console import Console

from bench.console import wide_console
from bench.engines import ORT, OURS, relative_error
from bench.measure import clock_for, interleave, machine_facts, paired_ratio
from bench.minilm.report import facts_table, operators_table
from bench.ocr import lines, networks, report
from bench.ocr.fetch import MODELS
from bench.ocr.networks import INPUT, Network
from bench.ocr.report import Case
from bench.wheels import fetch

TOLERANCE = 1e-4
FILE_WIDTH = 160
MIN_SECONDS = 0.01
QUICK = (0, 3, 5, 8)


@dataclass(frozen=True)
class Options:
    """What the command line chose."""

    threads: int = 1
    quick: bool = False
    rounds: int = 9
    operators: bool = False
    json: Path | None = None


def main(options: Options, console: Console | None = None) -> int:
    """Runs the job and prints it; the exit status is 0 when every result is right.

    Raises FetchError when the networks cannot be had.
    """
    import tvm_moonpoly as mp
    from relax_passes import Report

    console = console or wide_console(FILE_WIDTH)
    with console.status("Fetching the networks (15 MB, once)"):
        folder = fetch(MODELS)
    facts = machine_facts() | {"threads": f"{options.threads} for every engine"}
    facts["clock"] = clock_for(options.threads)[1]
    target = mp.detect_target(cores=options.threads)
    facts["target"] = str(target)
    console.print(facts_table(facts))

    notes = Report()
    found, build_seconds = {}, {}
    for name in networks.NAMES:
        console.print(f"Compiling the {name}: a minute or two, the first time on a machine more")
        with console.status("Compiling"):
            found[name] = networks.build(name, folder, target, options.threads, notes)
        build_seconds[name] = found[name].engines[OURS].build_seconds
    console.print(
        "Seconds to compile, once for lines of any width and number: "
        + ", ".join(f"{name} {seconds:.1f}" for name, seconds in build_seconds.items())
    )

    images = {text: lines.write(text) for text in lines.TEXTS}
    chosen = [lines.TEXTS[at] for at in QUICK] if options.quick else list(lines.TEXTS)
    read = [read_line(found["recogniser"], images[text]) for text in chosen]
    console.print(report.readings_table(chosen, read))

    batches: list[tuple[str, ...]] = [(text,) for text in chosen]
    batches += [tuple(lines.TEXTS[at] for at in batch) for batch in lines.BATCHES]
    cases = []
    for texts in batches[: len(chosen) + 1] if options.quick else batches:
        for network in found.values():
            with console.status(f"Running the {network.name} on {len(texts)} lines"):
                cases.append(run_case(network, texts, [images[text] for text in texts], options))
    cases.sort(key=lambda case: case.network, reverse=True)
    console.print(report.times_table(cases))
    for name, mean in report.geomeans(cases).items():
        console.print(f"geometric mean, {ORT} / {OURS}, {name}: {mean:.2f}")
    if options.operators:
        console.print(operators_table(notes.entries))
    if options.json:
        data = report.as_json(facts, cases, build_seconds)
        options.json.write_text(json.dumps(data, indent=1, ensure_ascii=False) + "\n")
    wrong = failures(cases)
    for line in wrong:
        console.print(f"wrong: {line}", style="red", markup=False)
    if not wrong:
        worst = max(case.error for case in cases)
        console.print(
            f"All results equal onnxruntime's; the largest error is {worst:.1e} of the largest "
            "output."
        )
    return 1 if wrong else 0


def read_line(recogniser: Network, image: Image.Image) -> report.Reading:
    """What our executable reads of one line."""
    (reading,) = recogniser.interpret(recogniser.run(OURS, lines.batch([image])))
    return reading


def input_of(network: Network, images: Sequence[Image.Image]) -> np.ndarray:
    """Lines for a network; every other one is upside down for the classifier."""
    if network.name == "classifier":
        images = [image.rotate(180) if at % 2 else image for at, image in enumerate(images)]
    return lines.batch(images)


def run_case(
    network: Network, texts: Sequence[str], images: Sequence[Image.Image], options: Options
) -> Case:
    """Checks and measures a network on the lines ``images``, on which ``texts`` are written."""
    batch = input_of(network, images)
    outputs = {name: network.run(name, batch) for name in network.engines}
    calls = {name: engine.prepare({INPUT: batch}) for name, engine in network.engines.items()}
    clock, _ = clock_for(options.threads)
    times = interleave(calls, rounds=options.rounds, min_seconds=MIN_SECONDS, clock=clock)
    said = {
        name: tuple(each.text for each in network.interpret(output))
        for name, output in outputs.items()
    }
    return Case(
        network.name,
        len(images),
        batch.shape[3],
        {name: statistics.median(each) for name, each in times.items()},
        paired_ratio(times[ORT], times[OURS]),
        relative_error(outputs[OURS], outputs[ORT]),
        tuple(texts),
        said[OURS],
        said[ORT],
    )


def failures(cases: Sequence[Case]) -> list[str]:
    """What is wrong with the results, a line each: too large an error, another text."""
    wrong = [
        f"{case}: error {case.error:.1e} is above {TOLERANCE:.0e}"
        for case in cases
        if not case.error <= TOLERANCE
    ]
    wrong += [
        f"{case}: {found!r} is not what onnxruntime finds, {expected!r}"
        for case in cases
        for found, expected in zip(case.found, case.expected, strict=True)
        if found != expected
    ]
    return wrong
