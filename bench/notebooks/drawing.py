"""What the notebooks' figures share: colours, labels beside lines, pictures and tables."""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from matplotlib.figure import Figure

#: Colours that people with any colour vision tell apart (Okabe and Ito).
BLUE, ORANGE, GREEN, PINK, RED, SKY, GREY = (
    "#0072B2",
    "#E69F00",
    "#009E73",
    "#CC79A7",
    "#D55E00",
    "#56B4E9",
    "#777777",
)
COLOURS = (BLUE, ORANGE, GREEN, PINK, RED, SKY, GREY)


def picture(figure: Figure) -> Any:
    """``figure`` as the output of a cell: a PNG that holds nothing but the picture."""
    from IPython.display import Image

    file = io.BytesIO()
    figure.savefig(file, format="png", dpi=100, metadata={"Software": None})
    return Image(data=small(file.getvalue()), format="png")


def small(png: bytes) -> bytes:
    """A PNG with a palette in the place of true colours, half the size or less."""
    from PIL import Image

    file = io.BytesIO()
    Image.open(io.BytesIO(png)).convert("RGB").quantize(256, Image.Quantize.MAXCOVERAGE).save(
        file, "PNG", optimize=True
    )
    return file.getvalue()


def canvas(*, width: float = 10, height: float = 5, columns: int = 1, rows: int = 1) -> Any:
    """A figure of ``rows`` by ``columns`` axes without frames on two sides, and its axes."""
    figure = Figure(figsize=(width, height), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False)
    for each in axes.flat:
        each.spines[["top", "right"]].set_visible(False)
        each.set_axisbelow(True)
    return figure, axes[0, 0] if rows == columns == 1 else axes


def doubling(axes: Any, first: int, last: int) -> None:
    """A logarithmic x axis with a tick at each doubling from ``first`` to ``last``."""
    from matplotlib import ticker

    ticks = [first]
    while ticks[-1] * 2 <= last:
        ticks.append(ticks[-1] * 2)
    axes.set_xscale("log", base=2)
    axes.set_xticks(ticks, [str(tick) for tick in ticks])
    axes.xaxis.set_minor_locator(ticker.NullLocator())


def spread(wanted: Sequence[float], least: float) -> list[float]:
    """Positions near ``wanted``, in the same order of size, that lie at least ``least`` apart.

    Neighbours that are too near share the shift between them, so that groups stay centred.
    """
    order = sorted(range(len(wanted)), key=lambda i: wanted[i])
    # Groups of labels that touch: [sum of where each member would put the first one, members].
    groups: list[list[Any]] = []
    for index in order:
        groups.append([wanted[index], [index]])
        while len(groups) > 1:
            (before, its), (here, mine) = groups[-2:]
            first, second = before / len(its), here / len(mine)
            if first + least * len(its) <= second:
                break
            joined = before + here - least * len(its) * len(mine)
            groups[-2:] = [[joined, [*its, *mine]]]
    placed = [0.0] * len(wanted)
    for total, members in groups:
        for place, index in enumerate(members):
            placed[index] = total / len(members) + least * place
    return placed


def label_lines(
    axes: Any, lines: Mapping[str, tuple[float, float, str]], least: float = 0.055
) -> None:
    """Write each name beside the axes, at the height where its line ends.

    ``lines`` are x and y of the ends and the colours; ``least`` is the least distance of two
    labels as a part of the axes' height. Limits and scales must be set already.
    """
    to_axes = axes.transData + axes.transAxes.inverted()
    ends = [to_axes.transform((x, y)) for x, y, _ in lines.values()]
    heights = spread([float(y) for _, y in ends], least)
    for (name, (_, _, colour)), end, height in zip(lines.items(), ends, heights, strict=True):
        axes.annotate(
            name, end, (1.03, height), xycoords="axes fraction", textcoords="axes fraction",
            color=colour, va="center", fontsize=9, annotation_clip=False,
            arrowprops={"arrowstyle": "-", "color": colour, "lw": 0.6, "alpha": 0.6},
        )  # fmt: skip


def table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> Any:
    """A table as the output of a cell; columns that hold numbers only stand at the right."""
    from IPython.display import Markdown

    return Markdown(markdown(header, [[str(cell) for cell in row] for row in rows]))


def markdown(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """The text of `table`."""
    right = [
        bool(rows) and all(row[i][:1].isdigit() or row[i] in ("", "-") for row in rows)
        for i in range(len(header))
    ]
    lines = [header, ["---:" if each else "---" for each in right], *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
