"""Networks that read text: lines and decoding alone, and the networks against onnxruntime."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import onnx
import pytest
from model_testing import assert_same_nan
from rich.console import Console

pytest.importorskip("PIL", reason="lines of text are written by Pillow, which is not installed")

from bench.engines import ORT, OURS  # noqa: E402
from bench.measure import Ratio  # noqa: E402
from bench.ocr import decoding, job, lines, networks, report  # noqa: E402
from bench.ocr.__main__ import parser  # noqa: E402
from bench.ocr.fetch import MODELS  # noqa: E402
from bench.wheels import FetchError, fetch  # noqa: E402

# Lines


def test_lines_are_written_within_the_image():
    images = [lines.write(text) for text in lines.TEXTS]
    widths = [image.width for image in images]
    assert widths[0] < 64 and widths[-1] > 1000 and len(set(widths)) == len(widths)
    for image in images:
        pixels = np.asarray(image.convert("L"))
        assert pixels.shape[0] == lines.HEIGHT and pixels.min() < 60
        border = [pixels[0], pixels[-1], pixels[:, 0], pixels[:, -1]]
        assert min(each.min() for each in border) > 200


def test_a_line_is_scaled_to_the_height_and_from_minus_one_to_one():
    prepared = lines.prepare(lines.write("Exit", height=96))
    assert prepared.dtype == np.float32 and prepared.shape[:2] == (3, lines.HEIGHT)
    assert abs(prepared.shape[2] - lines.write("Exit").width) <= 4
    assert -1 <= prepared.min() < -0.7 and 0.9 < prepared.max() <= 1
    blue, red = np.asarray(lines.PAPER)[[2, 0]]
    corner = prepared[:, 0, 0] * 127.5 + 127.5
    np.testing.assert_allclose(corner[[0, 2]], [blue, red], atol=0.01)


def test_a_batch_has_zeros_behind_its_shorter_lines():
    images = [lines.write("42"), lines.write("Room 4.032")]
    batch = lines.batch(images)
    assert batch.shape == (2, 3, lines.HEIGHT, images[1].width)
    np.testing.assert_array_equal(batch[0, :, :, : images[0].width], lines.prepare(images[0]))
    assert not batch[0, :, :, images[0].width :].any() and batch[1].all()


# Decoding


def scores_of(*rows: str) -> np.ndarray:
    """Scores of 0.9 for the characters of `rows`, in which - is the blank."""
    scores = np.full((len(rows), len(rows[0]), 4), 0.1 / 3, np.float32)
    for at, row in enumerate(rows):
        for step, character in enumerate(row):
            scores[at, step, "-ab ".index(character)] = 0.9
    return scores


def test_decoding_drops_blanks_and_what_stays():
    found = decoding.decode(scores_of("aa-ab-", "------", "b-b  a"), ["", "a", "b", " "])
    assert [each.text for each in found] == ["aab", "", "bb a"]
    assert [each.confidence for each in found] == pytest.approx([0.9, 0, 0.9])


def test_the_alphabet_is_the_models():
    model = onnx.ModelProto()
    with pytest.raises(ValueError, match="lists no characters"):
        decoding.alphabet(model)
    onnx.helper.set_model_props(model, {"character": "a\nb\n\u3000"})
    assert decoding.alphabet(model) == ["", "a", "b", "\u3000", " "]


def test_directions():
    found = networks.directions(np.array([[0.9, 0.1], [0.25, 0.75]], np.float32))
    assert [(each.text, each.confidence) for each in found] == [
        ("upright", pytest.approx(0.9)),
        ("upside down", pytest.approx(0.75)),
    ]


# The job


def a_case(error: float = 1e-6, ratio: float = 2.0, found: str = "a") -> report.Case:
    ratios = Ratio(ratio, ratio, ratio, (ratio,))
    seconds = {OURS: 0.001, ORT: 0.001 * ratio}
    return report.Case("recogniser", 1, 99, seconds, ratios, error, ("a",), (found,), ("a",))


def test_failures():
    assert job.failures([a_case()]) == []
    for error in (2e-4, np.inf, np.nan):
        assert "above 1e-04" in job.failures([a_case(error)])[0]
    assert "'b' is not what onnxruntime finds, 'a'" in job.failures([a_case(found="b")])[0]


def test_relative_errors():
    ones = np.ones((2, 3), np.float32)
    assert job.relative_error(ones * 4, ones * 5) == pytest.approx(0.2)
    assert job.relative_error(ones * np.nan, ones) == np.inf
    assert job.relative_error(ones[:1], ones) == np.inf
    assert job.relative_error(ones[:0], ones[:0]) == 0


def test_the_tables_print_everything():
    console = Console(width=160, record=True, file=io.StringIO())
    cases = [a_case(), a_case(ratio=0.5)]
    console.print(report.times_table(cases))
    console.print(report.readings_table(["[a]"], [decoding.Reading("b", 0.5)]))
    text = console.export_text()
    for wanted in ("2.00", "0.50", "1.0e-06", "recogniser", "[a]", "0.500"):
        assert wanted in text
    assert report.geomeans(cases) == {"recogniser": pytest.approx(1.0)}


def test_the_command_line():
    chosen = parser().parse_args(["--threads", "2", "--quick", "--json", "out.json"])
    assert (chosen.threads, chosen.quick, chosen.json) == (2, True, Path("out.json"))
    with pytest.raises(SystemExit):
        parser().parse_args(["--threads", "0"])


# The networks


@pytest.fixture(scope="module")
def folder() -> Path:
    try:
        return fetch(MODELS)
    except FetchError as error:
        pytest.skip(f"the networks cannot be fetched: {error}")


@pytest.fixture(scope="module", params=list(networks.NAMES))
def network(request, folder, target) -> networks.Network:
    return networks.build(request.param, folder, target, threads=1)


def test_the_networks_read_lines_of_every_width(network):
    """One executable each: lines of other widths, one and several at once, and none."""
    reads = network.name == "recogniser"
    for chosen in [(0,), (8,), (2, 3, 4), (10,)] if reads else [(4, 6), (10,), (7, 5, 6)]:
        texts = [lines.TEXTS[at] for at in chosen]
        batch = job.input_of(network, [lines.write(text) for text in texts])
        found, expected = (network.run(engine, batch) for engine in (OURS, ORT))
        assert job.relative_error(found, expected) <= job.TOLERANCE
        said = [each.text.strip() for each in network.interpret(found)]
        assert said == (texts if reads else directions_of(texts))
    assert network.run(OURS, np.zeros((0, 3, lines.HEIGHT, 64), np.float32)).shape[0] == 0


def test_nan_stays_in_its_line(network):
    batch = job.input_of(network, [lines.write(lines.TEXTS[at]) for at in (2, 3, 4)])
    batch[1, 0, 20, 30] = np.nan
    assert_same_nan(network.engines[OURS], network.engines[ORT], {networks.INPUT: batch}, row=1)


def directions_of(texts: list[str]) -> list[str]:
    return [("upright", "upside down")[at % 2] for at in range(len(texts))]


def test_sizes_stay_symbolic(folder):
    for name, file in networks.NAMES.items():
        result = networks.module_of(folder / file)["main"].ret_ty
        shown = [str(getattr(size, "name", size)) for size in result.shape.values]
        assert shown[0] == "lines"
        assert ("width" in shown[1]) == (name == "recogniser")
