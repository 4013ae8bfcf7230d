"""Reports of the image experiments: tables, learning curves and text."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from experiments.data.images import DATASETS, is_complete
from experiments.framework.experiment import Plan, Record, Report, Table
from experiments.framework.figure import GREEN, INK, SOFT, draw_figure
from experiments.paper.published import IMAGES, SMALL_IMAGES, Published

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["SYSTEMS", "format_bits", "report", "size_report"]

COLUMNS = ["system", "dequantisation", "parameters", "steps", "bits/dim", "figure"]
SYSTEMS = {"elf": "ELF", "glow": "Glow of normflows"}
HISTOGRAM = "histogram of each pixel"
COLORS = {"uniform": GREEN, "variational": "#4a5fa5", "glow": "#b8860b"}
SIZE_COLORS = ["#9fc8b7", "#4f9a7c", "#1d6b4f", "#0d3a2b"]
BOUND = (
    "Bits per dimension are an upper bound, estimated with one noise sample for each image; lower is better. Models "
    "have the averaged weights that were best on validation images."
)


# --- images -----------------------------------------------------------------------------------------------------------


def report(plan: Plan, records: dict[str, Record], folder: Path) -> Report:
    """Bits per dimension of each data set beside published ones, learning curves, and times."""
    sets = {name: [r for r in records.values() if r["dataset"] == name] for name in DATASETS}
    tables = [table for name, runs in sets.items() for table in _tabulate_set(name, runs)]
    tables.append(_tabulate_times(list(records.values())))
    pictures = {"curves.png": "Validation bits per dimension during training. Each panel has its own axes."}
    _draw_curves(folder / "curves.png", {name: runs for name, runs in sets.items() if runs})
    comparable = {name: [r for r in runs if _is_complete(r)] for name, runs in sets.items() if name != "digits"}
    comparable = {name: runs for name, runs in comparable.items() if runs}
    if comparable:
        _draw_published(folder / "published.png", comparable)
        pictures["published.png"] = "Bits per dimension of test images: filled, measured here; hollow, published."
    lines = [_describe(name, runs) for name, runs in sets.items() if runs]
    lines.append(_describe_progress(plan, [r for r in records.values() if r["dataset"] != "digits"]))
    return Report("\n\n".join(line for line in lines if line), tables, pictures)


def _tabulate_set(name: str, runs: list[Record]) -> list[Table]:
    """Tables of one data set. Results on a part of it have a table without published figures."""
    title, published = DATASETS[name].title, _make_published_rows(name)
    measured = [row for record in runs for row in _make_rows(record)]
    measured.sort(key=lambda row: row[0] == HISTOGRAM)
    if all(_is_complete(record) for record in runs):
        note = BOUND if runs else "Nothing was measured here."
        rows = [*measured, *published]
        return [Table(f"{title}, bits per dimension of test images", COLUMNS, rows, note)] if rows else []
    first = runs[0]
    sizes = f"{first['train_images']:,} training and {first['all_test_images']:,} test images"
    note = f"{BOUND} {first['file']} is a part of {title} ({sizes}): published figures are not comparable."
    tables = [Table(f"A part of {title}, bits per dimension of test images", COLUMNS, measured, note)]
    only = "Nothing was measured on the complete data set."
    return [*tables, Table(f"{title}, published figures", COLUMNS, published, only)] if published else tables


def _is_complete(record: Record) -> bool:
    return is_complete(record["dataset"], record["train_images"], record["all_test_images"])


def _make_rows(record: Record) -> list[list[str]]:
    """Rows of a record: its model, and the histogram if it has one."""
    origin = f"measured here, {record['test_images']:,} test images"
    sizes = [f"{record['parameters']:,}", f"{record['steps']:,}"]
    rows = [[SYSTEMS[record["system"]], record["dequantization"], *sizes, format_bits(record), origin]]
    if "histogram" in record:
        rows.append([HISTOGRAM, "", "", "", format_bits(record["histogram"]), origin])
    return rows


def _make_published_rows(name: str) -> list[list[str]]:
    """Rows of published figures, best first."""
    return [
        [one.system, _name_dequantization(one), "", "", _format_printed_bits(one), f"*published*: {one.reference}"]
        for one in _sort_published(name)
    ]


def _sort_published(name: str, figures: Sequence[Published] = IMAGES) -> list[Published]:
    return sorted((one for one in figures if one.dataset == name), key=lambda one: one.value)


def _name_dequantization(one: Published) -> str:
    return "variational" if one.variational else "uniform"


def _format_printed_bits(one: Published) -> str:
    return f"{one.value:.2f}" + (f" ({one.uniform:.2f} uniform)" if one.uniform is not None else "")


def format_bits(record: Record) -> str:
    """Bits per dimension with their standard error.

    Example:
        >>> format_bits({"bits": 1.0824, "error": 0.0031})
        '1.082 ± 0.003'
    """
    return f"{record['bits']:.3f} ± {record['error']:.3f}"


def _tabulate_times(runs: list[Record]) -> Table:
    rows = [
        [
            SYSTEMS[r["system"]],
            DATASETS[r["dataset"]].title,
            r["dequantization"],
            f"{r['parameters']:,}",
            f"{r['steps']:,}",
            str(r["batch_size"]),
            f"{r['training_seconds']:.0f}",
            f"{r['training_seconds'] / max(1, r['steps']):.2g}",
        ]
        for r in runs
    ]
    columns = ["system", "data", "dequantisation", "parameters", "steps", "batch size", "seconds", "seconds per step"]
    note = "Seconds of training, including validation after each round. Times vary between runs, other figures do not."
    return Table("Times", columns, rows, note)


def _describe(name: str, runs: list[Record]) -> str:
    """The findings on one data set."""
    by_model = {("glow" if r["system"] == "glow" else r["dequantization"]): r for r in runs}
    title = DATASETS[name].title if all(map(_is_complete, runs)) else f"the available part of {DATASETS[name].title}"
    sentences = []
    if uniform := by_model.get("uniform"):
        text = f"On {title}, ELF has {format_bits(uniform)} bits per dimension after {uniform['steps']:,} steps"
        if "histogram" in uniform:
            text += f"; a histogram of each pixel has {format_bits(uniform['histogram'])}"
        sentences.append(text)
    if glow := by_model.get("glow"):
        text = f"The Glow of normflows has {format_bits(glow)} after {glow['steps']:,} steps"
        if uniform:
            own, other = [f"{r['parameters']:,} parameters, batch size {r['batch_size']}" for r in (uniform, glow)]
            text += f" ({other}; ELF: {own})"
        sentences.append(text)
    if variational := by_model.get("variational"):
        text = f"With variational dequantisation ELF has {format_bits(variational)}"
        if uniform and uniform["steps"] == variational["steps"]:
            gain = uniform["bits"] - variational["bits"]
            text += f", {abs(gain):.3f} {'less' if gain > 0 else 'more'} after the same number of steps"
        sentences.append(text)
    return ". ".join(sentences) + "."


def _describe_progress(plan: Plan, records: list[Record]) -> str:
    """A warning about short training."""
    if plan.scale == "paper" or not records:
        return ""
    falls = [f"{last_fall(r):.3f} ({DATASETS[r['dataset']].title}, {r['dequantization']})" for r in records]
    return (
        "These are the presets for CPUs after few steps. Over the last quarter of the steps, validation bits fell by "
        f"{', '.join(falls)}: where that is far from zero, longer training would help. Published figures are of fully "
        "trained models; a few minutes on one core are no competition for them."
    )


def last_fall(record: Record) -> float:
    """Decrease of the validation bits per dimension over the last quarter of the steps.

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
    """Parameters of the paper's small models, and bits per dimension of the sizes that were trained here."""
    counts: dict[str, int] = records.get("counts", {}).get("counts", {})
    runs = sorted((r for key, r in records.items() if key != "counts"), key=lambda r: int(r["parameters"]))
    tables, text, pictures = [], [], {}
    if counts:
        tables.append(_tabulate_presets(counts))
        text.append(
            "The presets of the paper's small models have "
            + ", ".join(
                f"{counts[name]:,} parameters ({name.replace(':', ', size ')})"
                for name in counts
                if "small" in name or "4m" in name
            )
            + ", counted in the models themselves."
        )
    for name in DATASETS:
        some = [r for r in runs if r["dataset"] == name]
        if some:
            tables.append(_tabulate_sizes(name, some))
            text.append(_describe_sizes(name, some))
            pictures[f"{name}.png"] = (
                f"{DATASETS[name].title}: validation bits per dimension during training, and bits per dimension of "
                "test images against the number of parameters, with standard errors."
            )
            _draw_sizes(folder / f"{name}.png", some)
    if runs:
        tables.append(_tabulate_times(runs))
    if plan.scale == "cpu":
        text.append("Models of the paper's size are trained with --scale paper, on a GPU.")
    return Report("\n\n".join(text), tables, pictures)


def _tabulate_presets(counts: dict[str, int]) -> Table:
    from elflow.flows import preset

    rows = []
    for name, count in counts.items():
        own, _, size = name.partition(":")
        flow = preset(own, size or "gpu").flow
        shape, kind = "x".join(map(str, flow["shape"])), flow.get("dequantization", "uniform")
        sizes = [str(flow[size]) for size in ("channels", "blocks", "units")]
        rows.append([f"ELF, {own}, size {size or 'gpu'}", shape, kind, *sizes, f"{count:,}"])
    note = (
        "Counted in the models. The paper prints 1.9M, 1.9M and 4.1M for its small models, and widths that give more: "
        "size gpu has the printed numbers, size paper the printed widths, with 256 units and weights instead of bumps."
    )
    columns = ["preset", "images", "dequantisation", "channels", "blocks", "units", "parameters"]
    return Table("Models of the paper", columns, rows, note)


def _tabulate_sizes(name: str, runs: list[Record]) -> Table:
    title, complete = DATASETS[name].title, all(map(_is_complete, runs))
    rows = [
        [f"ELF, {r['channels']} channels", *_make_rows(r)[0][1:5], f"{last_fall(r):.3f}", "measured here"] for r in runs
    ]
    if complete:
        rows += [
            [
                one.system,
                _name_dequantization(one),
                "" if one.parameters is None else f"{one.parameters / 1e6:.3g}M",
                "",
                _format_printed_bits(one),
                "",
                f"*published*: {one.reference}" + (f", {one.footnote}" if one.footnote else ""),
            ]
            for one in _sort_published(name, SMALL_IMAGES)
        ]
    note = f"{BOUND} The last fall is the decrease of validation bits over the last quarter of the steps."
    if not complete:
        note += f" This is a part of {title}: published figures are not comparable."
    columns = ["system", "dequantisation", "parameters", "steps", "bits/dim", "last fall", "figure"]
    return Table(f"{title}, parameters and bits per dimension of test images", columns, rows, note)


def _describe_sizes(name: str, runs: list[Record]) -> str:
    small, large = runs[0], runs[-1]
    title = DATASETS[name].title
    if len(runs) == 1:
        return (
            f"On {title} the model of {small['parameters']:,} parameters has {format_bits(small)} bits per dimension."
        )
    falls = ", ".join(f"{last_fall(r):.3f}" for r in runs)
    times = large["parameters"] / small["parameters"]
    return (
        f"On {title}, {small['parameters']:,} parameters have {format_bits(small)} bits per dimension after "
        f"{small['steps']:,} steps, and {large['parameters']:,} have {format_bits(large)} after {large['steps']:,}: "
        f"{times:.1f} times as many parameters change the figure by {large['bits'] - small['bits']:+.3f}. Over the "
        f"last quarter of the steps, validation bits fell by {falls}, from the smallest model to the largest."
    )


# --- figures ----------------------------------------------------------------------------------------------------------


def _make_label(record: Record) -> str:
    if record["system"] == "glow":
        return SYSTEMS["glow"]
    return f"ELF, {record['dequantization']}"


def _choose_color(record: Record) -> str:
    return COLORS["glow" if record["system"] == "glow" else record["dequantization"]]


def _draw_curves(path: Path, sets: dict[str, list[Record]]) -> None:
    with draw_figure(path, columns=len(sets), figsize=(0.6 + 3.6 * len(sets), 3.4)) as (_, axes):
        for place, (name, runs) in zip(axes[0], sets.items(), strict=True):
            for record in runs:
                _draw_curve(place, record, _choose_color(record), _make_label(record))
            part = "" if all(map(_is_complete, runs)) else ", a part"
            place.set(title=f"{DATASETS[name].title}{part}", xlabel="step")
            place.legend(frameon=False)
        axes[0, 0].set_ylabel("validation bits per dimension")


def _draw_curve(place: Axes, record: Record, color: str, label: str) -> None:
    from matplotlib.ticker import MaxNLocator

    steps, _, bits = zip(*record["curve"], strict=True)
    place.plot(steps, bits, "o-", color=color, markersize=3.5, linewidth=1.4, label=label)
    place.margins(x=0.04)
    place.xaxis.set_major_locator(MaxNLocator(5, integer=True))
    place.grid(color=SOFT, alpha=0.25, linewidth=0.6)


def _draw_published(path: Path, sets: dict[str, list[Record]]) -> None:
    """Points for each data set: measured and published ones."""
    with draw_figure(path, columns=len(sets), figsize=(1.5 + 4.2 * len(sets), 3.4)) as (_, axes):
        for place, (name, runs) in zip(axes[0], sets.items(), strict=True):
            points: list[tuple[float, str, Any]] = [(one.value, one.system, None) for one in _sort_published(name)]
            points += [(r["bits"], _make_label(r), r) for r in runs]
            points.sort(key=lambda point: -point[0])
            for y, (value, _, record) in enumerate(points):
                color = INK if record is None else _choose_color(record)
                face = "white" if record is None else color
                error = None if record is None else record["error"]
                place.errorbar(value, y, xerr=error, fmt="o", markersize=6, color=color, markerfacecolor=face)
                place.annotate(f"{value:.2f}", (value, y), (0, 6), textcoords="offset points", ha="center", fontsize=8)
            place.set_yticks(range(len(points)), [system for _, system, _ in points])
            for tick, (_, _, record) in zip(place.get_yticklabels(), points, strict=True):
                tick.set_color(INK if record is None else _choose_color(record))
                tick.set_fontweight("normal" if record is None else "bold")
            place.tick_params(axis="y", length=0)
            place.grid(axis="y", color=SOFT, alpha=0.3, linewidth=0.6)
            place.set_axisbelow(True)
            place.margins(x=0.15)
            place.set(title=DATASETS[name].title, xlabel="bits per dimension, lower is better")


def _draw_sizes(path: Path, runs: list[Record]) -> None:
    with draw_figure(path, columns=2, figsize=(9, 3.6)) as (_, axes):
        left, right = axes[0]
        for record, color in zip(runs, SIZE_COLORS, strict=False):
            x, y = record["parameters"], record["bits"]
            _draw_curve(left, record, color, f"{x:,} parameters")
            right.errorbar(x, y, yerr=record["error"], fmt="o", color=color, capsize=3, markersize=7)
            right.annotate(f"{y:.3f}", (x, y), (9, 0), textcoords="offset points", va="center")
        left.set(xlabel="step", ylabel="validation bits per dimension", title="Training")
        left.legend(frameon=False)
        right.plot([r["parameters"] for r in runs], [r["bits"] for r in runs], color=SOFT, zorder=0)
        right.set(xlabel="parameters", ylabel="test bits per dimension", title="Size", xscale="log")
        right.grid(color=SOFT, alpha=0.25, linewidth=0.6)
        right.set_xticks([r["parameters"] for r in runs], [f"{r['parameters'] / 1000:,.0f}k" for r in runs])
        right.minorticks_off()
        right.margins(x=0.2, y=0.2)
