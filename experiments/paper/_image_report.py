"""What the experiments on images show: tables, curves, and a text that follows from the records."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from experiments.data.images import DATASETS, is_whole
from experiments.framework import figure as _figure
from experiments.framework.experiment import Plan, Record, Report, Table
from experiments.paper.published import IMAGES, UNSEEN, Published

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["report", "size_report"]

COLUMNS = ["system", "dequantisation", "parameters", "steps", "bits/dim", "figure"]
NAMES = {"elf": "ELF", "glow": "Glow of normflows"}
HISTOGRAM = "each pixel's histogram"
COLORS = {"uniform": "#1d6b4f", "variational": "#4a5fa5", "glow": "#b8860b"}
WIDTHS = ["#9fc8b7", "#4f9a7c", "#1d6b4f", "#0d3a2b"]
BOUND = (
    "Bits per dimension are an upper bound, from one point of each image's cells; fewer are better. They are of the "
    "averaged weights that were best on held-out images."
)


# --- images -----------------------------------------------------------------------------------------------------------


def report(plan: Plan, records: dict[str, Record], folder: Path) -> Report:
    """Each data set's figures beside published ones, learning curves, and times."""
    sets = {name: [r for r in records.values() if r["dataset"] == name] for name in DATASETS}
    tables = [table for name, found in sets.items() for table in _tables(name, found)]
    tables.append(_times(records))
    pictures = {"curves.png": "Held-out bits per dimension over training. Each panel has axes of its own."}
    _draw_curves(folder / "curves.png", {name: found for name, found in sets.items() if found})
    comparable = {name: [r for r in found if _whole(r)] for name, found in sets.items() if name != "digits"}
    comparable = {name: found for name, found in comparable.items() if found}
    if comparable:
        _draw_published(folder / "published.png", comparable)
        pictures["published.png"] = "Bits per dimension of test images: filled, measured here; hollow, published."
    lines = [_said(name, found) for name, found in sets.items() if found]
    lines.append(_caution(plan, [r for r in records.values() if r["dataset"] != "digits"]))
    return Report("\n\n".join(line for line in lines if line), tables, pictures)


def _tables(name: str, found: list[Record]) -> list[Table]:
    """The figures of one data set. Those of a part of it are in a table without published ones."""
    title, published = DATASETS[name].title, _published(name)
    measured = [row for record in found for row in _rows(record)]
    measured.sort(key=lambda row: row[0] == HISTOGRAM)
    if all(_whole(record) for record in found):
        note = BOUND if found else "Nothing was measured here."
        rows = [*measured, *published]
        return [Table(f"{title}, bits per dimension of test images", COLUMNS, rows, note)] if rows else []
    first = found[0]
    part = f"{first['train_images']:,} images for training and {first['all_test_images']:,} for test"
    note = f"{BOUND} {first['file']} is a part of {title} ({part}): no published figure compares with these."
    tables = [Table(f"A part of {title}, bits per dimension of test images", COLUMNS, measured, note)]
    only = "Nothing of the whole data set was measured here."
    return [*tables, Table(f"{title}, published figures", COLUMNS, published, only)] if published else tables


def _whole(record: Record) -> bool:
    return is_whole(record["dataset"], record["train_images"], record["all_test_images"])


def _rows(record: Record) -> list[list[str]]:
    """What a record adds to a table: its model, and the histogram if it has one."""
    seen = f"measured here, {record['test_images']:,} test images"
    sizes = [f"{record['parameters']:,}", f"{record['steps']:,}"]
    rows = [[NAMES[record["system"]], record["dequantization"], *sizes, bits(record), seen]]
    if "histogram" in record:
        rows.append([HISTOGRAM, "", "", "", bits(record["histogram"]), seen])
    return rows


def _published(name: str) -> list[list[str]]:
    """Rows of what others have, the best first, then those whose figures could not be had."""
    known = [[one.system, "", "", "", f"{one.value:.2f}", f"*published*: {one.reference}"] for one in _others(name)]
    unseen = [[system, "", "", "", "not at hand", f"*published*: {paper}"] for system, paper in UNSEEN.items()]
    return [*known, *unseen] if known else []


def _others(name: str) -> list[Published]:
    return sorted((one for one in IMAGES if one.dataset == name), key=lambda one: one.value)


def bits(record: Record) -> str:
    """A figure with its standard error.

    Example:
        >>> bits({"bits": 1.0824, "error": 0.0031})
        '1.082 ± 0.003'
    """
    return f"{record['bits']:.3f} ± {record['error']:.3f}"


def _times(records: dict[str, Record]) -> Table:
    rows = [
        [
            NAMES[r["system"]],
            DATASETS[r["dataset"]].title,
            r["dequantization"],
            f"{r['parameters']:,}",
            f"{r['steps']:,}",
            str(r["batch_size"]),
            f"{r['training_seconds']:.0f}",
            f"{r['training_seconds'] / max(1, r['steps']):.2g}",
        ]
        for r in records.values()
    ]
    columns = ["system", "data", "dequantisation", "parameters", "steps", "in a batch", "seconds", "seconds of a step"]
    note = "Of training, with the held-out images after each round. Times vary from run to run, other figures do not."
    return Table("Times", columns, rows, note)


def _said(name: str, found: list[Record]) -> str:
    """What was found on one data set, in words."""
    by = {("glow" if r["system"] == "glow" else r["dequantization"]): r for r in found}
    title = DATASETS[name].title if all(map(_whole, found)) else f"the part of {DATASETS[name].title} that is here"
    said = []
    if uniform := by.get("uniform"):
        said.append(f"On {title}, ELF has {bits(uniform)} bits per dimension after {uniform['steps']:,} steps")
        if "histogram" in uniform:
            said[-1] += f", where a histogram of each pixel has {bits(uniform['histogram'])}"
    if glow := by.get("glow"):
        text = f"the Glow of normflows has {bits(glow)} after {glow['steps']:,} steps"
        if uniform:
            own, other = [f"{r['parameters']:,} parameters and batches of {r['batch_size']}" for r in (uniform, glow)]
            text += f" ({other}, where ELF has {own})"
        said.append(text)
    if learnt := by.get("variational"):
        text = f"with variational dequantisation ELF has {bits(learnt)}"
        if uniform and uniform["steps"] == learnt["steps"]:
            gain = uniform["bits"] - learnt["bits"]
            text += f", {abs(gain):.3f} {'less' if gain > 0 else 'more'} after as many steps"
        said.append(text)
    return "; ".join(said)[:1].upper() + "; ".join(said)[1:] + "."


def _caution(plan: Plan, records: list[Record]) -> str:
    """How far the figures are from what they could become."""
    if plan.scale == "paper" or not records:
        return ""
    falls = [f"{last_fall(r):.3f} ({DATASETS[r['dataset']].title}, {r['dequantization']})" for r in records]
    return (
        "These are the presets for CPUs after few steps. Over the last quarter of them the bits of held-out images "
        f"fell by {', '.join(falls)}: where that is far from zero, longer training would give less. Published figures "
        "are of other models, which their authors trained for as long as they saw fit; measured ones beside them tell "
        "where a few minutes on one core lead, and are no contest."
    )


def last_fall(record: Record) -> float:
    """By how many bits per dimension the held-out images became better over the last quarter of the steps.

    Example:
        >>> last_fall({"curve": [[10, 1.0, 3.0], [20, 2.0, 2.0], [30, 3.0, 1.5], [40, 4.0, 1.25]]})
        0.25
    """
    curve = record["curve"]
    until = 0.75 * curve[-1][0]
    before = [value for step, _, value in curve if step <= until]
    return float((before[-1] if before else curve[0][2]) - curve[-1][2])


# --- parameter-efficiency ---------------------------------------------------------------------------------------------


def size_report(plan: Plan, records: dict[str, Record], folder: Path) -> Report:
    """What the paper's small models have for parameters, and what sizes that were trained here have for bits."""
    counts: dict[str, int] = records.get("counts", {}).get("counts", {})
    found = sorted((r for key, r in records.items() if key != "counts"), key=lambda r: int(r["parameters"]))
    tables, text, pictures = [], [], {}
    if counts:
        tables.append(_counted(counts))
        text.append(
            "The presets of the paper's small models have "
            + ", ".join(f"{counts[name]:,} parameters ({name})" for name in counts if "small" in name or "4m" in name)
            + ", counted in the models themselves."
        )
    for name in DATASETS:
        some = [r for r in found if r["dataset"] == name]
        if some:
            tables.append(_sizes(name, some))
            text.append(_said_of_sizes(name, some))
            pictures[f"{name}.png"] = (
                f"{DATASETS[name].title}: held-out bits per dimension over training, and those of test images over the "
                "number of parameters, with their standard errors."
            )
            _draw_sizes(folder / f"{name}.png", some)
    if found:
        tables.append(_times({str(i): r for i, r in enumerate(found)}))
    if plan.scale == "cpu":
        text.append("At the scale of CPUs nothing of the paper's size is trained: that needs --scale paper and a GPU.")
    return Report("\n\n".join(text), tables, pictures)


def _counted(counts: dict[str, int]) -> Table:
    from elflow.flows import preset

    rows = []
    for name, count in counts.items():
        flow = preset(name).flow
        shape, kind = "x".join(map(str, flow["shape"])), flow.get("dequantization", "uniform")
        sizes = [str(flow[size]) for size in ("channels", "blocks", "units")]
        rows.append([f"ELF, {name}", shape, kind, *sizes, f"{count:,}"])
    note = "Counted in the models. Sources of the parameters of other systems could not be had here."
    columns = ["preset", "images", "dequantisation", "channels", "blocks", "units", "parameters"]
    return Table("The models of the paper", columns, rows, note)


def _sizes(name: str, found: list[Record]) -> Table:
    title, whole = DATASETS[name].title, all(map(_whole, found))
    rows = [
        [f"ELF, {r['channels']} channels", *_rows(r)[0][1:5], f"{last_fall(r):.3f}", "measured here"] for r in found
    ]
    if whole:
        rows += [
            [one.system, "", "", "", f"{one.value:.2f}", "", f"*published*: {one.reference}"] for one in _others(name)
        ]
    note = f"{BOUND} The last fall is what held-out images gained over the last quarter of the steps."
    if not whole:
        note += f" This is a part of {title}: no published figure compares with these."
    columns = ["system", "dequantisation", "parameters", "steps", "bits/dim", "last fall", "figure"]
    return Table(f"{title}, parameters and bits per dimension of test images", columns, rows, note)


def _said_of_sizes(name: str, found: list[Record]) -> str:
    small, large = found[0], found[-1]
    title = DATASETS[name].title
    if len(found) == 1:
        return f"On {title} the model of {small['parameters']:,} parameters has {bits(small)} bits per dimension."
    falls = ", ".join(f"{last_fall(r):.3f}" for r in found)
    times = large["parameters"] / small["parameters"]
    return (
        f"On {title}, after {small['steps']:,} steps, {small['parameters']:,} parameters have {bits(small)} bits per "
        f"dimension, and {large['parameters']:,} after {large['steps']:,} have {bits(large)}: {times:.1f} times as "
        f"many parameters change the figure by {large['bits'] - small['bits']:+.3f}. How far that is from convergence: "
        f"over the last quarter of the steps the bits of held-out images fell by {falls}, from the smallest model to "
        "the largest."
    )


# --- pictures ---------------------------------------------------------------------------------------------------------


def _label(record: Record) -> str:
    if record["system"] == "glow":
        return NAMES["glow"]
    return f"ELF, {record['dequantization']}"


def _color(record: Record) -> str:
    return COLORS["glow" if record["system"] == "glow" else record["dequantization"]]


def _draw_curves(path: Path, sets: dict[str, list[Record]]) -> None:
    plt = _figure.pyplot()
    with plt.rc_context(_figure.STYLE):
        figure, axes = plt.subplots(
            1, len(sets), figsize=(0.6 + 3.6 * len(sets), 3.4), layout="constrained", squeeze=False
        )
        for place, (name, found) in zip(axes[0], sets.items(), strict=True):
            for record in found:
                _curve(place, record, _color(record), _label(record))
            part = "" if all(map(_whole, found)) else ", a part"
            place.set(title=f"{DATASETS[name].title}{part}", xlabel="step")
            place.legend(frameon=False)
        axes[0, 0].set_ylabel("held-out bits per dimension")
        _figure.save(figure, path)
        plt.close(figure)


def _curve(place: Axes, record: Record, color: str, label: str) -> None:
    from matplotlib.ticker import MaxNLocator

    steps, _, held_out = zip(*record["curve"], strict=True)
    place.plot(steps, held_out, "o-", color=color, markersize=3.5, linewidth=1.4, label=label)
    place.margins(x=0.04)
    place.xaxis.set_major_locator(MaxNLocator(5, integer=True))
    place.grid(color=_figure.SOFT, alpha=0.25, linewidth=0.6)


def _draw_published(path: Path, sets: dict[str, list[Record]]) -> None:
    """A panel of points for each data set: measured ones and published ones."""
    plt = _figure.pyplot()
    with plt.rc_context(_figure.STYLE):
        figure, axes = plt.subplots(
            1, len(sets), figsize=(1.5 + 4.2 * len(sets), 3.4), layout="constrained", squeeze=False
        )
        for place, (name, found) in zip(axes[0], sets.items(), strict=True):
            points: list[tuple[float, str, Any]] = [(one.value, one.system, None) for one in _others(name)]
            points += [(r["bits"], _label(r), r) for r in found]
            points.sort(key=lambda point: -point[0])
            for y, (value, _, record) in enumerate(points):
                color = _figure.INK if record is None else _color(record)
                face = "white" if record is None else color
                error = None if record is None else record["error"]
                place.errorbar(value, y, xerr=error, fmt="o", markersize=6, color=color, markerfacecolor=face)
                place.annotate(f"{value:.2f}", (value, y), (0, 6), textcoords="offset points", ha="center", fontsize=8)
            place.set_yticks(range(len(points)), [system for _, system, _ in points])
            for tick, (_, _, record) in zip(place.get_yticklabels(), points, strict=True):
                tick.set_color(_figure.INK if record is None else _color(record))
                tick.set_fontweight("normal" if record is None else "bold")
            place.tick_params(axis="y", length=0)
            place.grid(axis="y", color=_figure.SOFT, alpha=0.3, linewidth=0.6)
            place.set_axisbelow(True)
            place.margins(x=0.15)
            place.set(title=DATASETS[name].title, xlabel="bits per dimension, fewer are better")
        _figure.save(figure, path)
        plt.close(figure)


def _draw_sizes(path: Path, found: list[Record]) -> None:
    plt = _figure.pyplot()
    with plt.rc_context(_figure.STYLE):
        figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.6), layout="constrained")
        for record, color in zip(found, WIDTHS, strict=False):
            _curve(left, record, color, f"{record['parameters']:,} parameters")
            right.errorbar(
                record["parameters"],
                record["bits"],
                yerr=record["error"],
                fmt="o",
                color=color,
                capsize=3,
                markersize=7,
            )
            right.annotate(
                f"{record['bits']:.3f}",
                (record["parameters"], record["bits"]),
                (9, 0),
                textcoords="offset points",
                va="center",
            )
        left.set(xlabel="step", ylabel="held-out bits per dimension", title="Training")
        left.legend(frameon=False)
        right.plot([r["parameters"] for r in found], [r["bits"] for r in found], color=_figure.SOFT, zorder=0)
        right.set(xlabel="parameters", ylabel="test bits per dimension", title="Size", xscale="log")
        right.grid(color=_figure.SOFT, alpha=0.25, linewidth=0.6)
        right.set_xticks([r["parameters"] for r in found], [f"{r['parameters'] / 1000:,.0f}k" for r in found])
        right.minorticks_off()
        right.margins(x=0.2, y=0.2)
        _figure.save(figure, path)
        plt.close(figure)
