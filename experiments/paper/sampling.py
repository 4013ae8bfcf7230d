"""Cost of sampling: exact sweeps, the paper's fixed point, and one coordinate after the other, from the same noise.

Two flows are inverted: one over the 64 pixels of scikit-learn's digits, and one over images of MNIST, which is
`mnist.elf` of the data folder if there is one, or is trained for a few steps.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

import elflow
from elflow.flows import preset
from elflow.serialization import read_training
from elflow.training import Training, format_duration, image_recipe
from elflow.transforms import METHODS
from experiments.data.images import MODEL, find_images, find_model, list_missing, load_images, load_model, spread
from experiments.framework.experiment import Experiment, Job, Plan, Record, Report, Table
from experiments.framework.figure import ACCENT, GREEN, SOFT, draw_figure
from experiments.framework.training import fit_batches
from experiments.paper.claims import with_claims
from experiments.paper.image_fit import score_images, shorten_recipe, train_images

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["EXPERIMENT", "METHOD_TITLES", "DigitsFlow", "compare_methods", "fit_digits", "invert_images"]

STEPS = {"digits": 600, "mnist": 400}
"""Training steps at the scale of CPUs."""
PAPER_STEPS = 20_000
"""Training steps of MNIST at the scale of the paper. The costs of sampling settle long before training ends."""
FLOW: dict[str, Any] = {"transforms": 3, "units": 16, "hidden_features": [256, 256]}
LEVELS = 17
FEW, MANY = {"digits": 20, "mnist": 16}, {"digits": 1_000, "mnist": 64}
"""Numbers of samples that every method draws, and that exact sweeps alone draw."""
TITLES = {"digits": "64 pixels (digits)", "mnist": "MNIST"}
METHOD_TITLES = {
    "exact": "exact sweeps",
    "fixed-point": "fixed point (the paper's)",
    "sequential": "one coordinate after the other",
}
COLORS = {"exact": GREEN, "fixed-point": ACCENT, "sequential": "#b8860b"}

Invert = Callable[[Tensor, str], tuple[Tensor, Any]]
"""Maps noise `(N, features)` by a method to samples and an `InverseInfo`."""


def jobs(plan: Plan) -> list[Job]:
    jobs = [_make_job(plan, "digits", {"steps": plan.scaled(STEPS["digits"]), "flow": FLOW})]
    if find_model(plan) is not None:
        jobs.append(_make_job(plan, "mnist", {"model": MODEL}))
    elif (file := find_images(plan, "mnist")) is not None:
        steps = STEPS["mnist"] if plan.scale == "cpu" else PAPER_STEPS
        jobs.append(_make_job(plan, "mnist", {"file": file, "scale": plan.scale, "steps": plan.scaled(steps)}))
    return jobs


def _make_job(plan: Plan, name: str, settings: Record) -> Job:
    stamp = plan.stamp(*(settings[key] for key in ("model", "file") if key in settings))
    same = {"stamp": stamp, "few": FEW[name], "many": MANY[name], "seed": plan.seed}
    return Job(name, {"flow_of": name, **settings, **same})


def work(plan: Plan, settings: Record, folder: Path) -> Record:
    torch.manual_seed(settings["seed"])
    if settings["flow_of"] == "digits":
        fitted = fit_digits(settings["flow"], settings["steps"], 2e-3, settings["seed"])
        record: Record = {"steps": settings["steps"], "bits": fitted.bits}
        record["source"] = f"trained here for {settings['steps']:,} steps"
        invert: Invert = fitted.invert
        features, device = fitted.flow.features, "cpu"
    else:
        model, classes, record = _prepare_mnist(plan, settings, folder)
        device = plan.device
        invert, features = invert_images(model.to(device), classes), model.flow.features
    torch.manual_seed(settings["seed"] + 1)
    z = torch.randn(settings["many"], features).to(device)
    methods = compare_methods(invert, z, settings["few"])
    return {"flow_of": settings["flow_of"], "features": features, **record, "methods": methods}


def compare_methods(invert: Invert, z: Tensor, few: int) -> list[Record]:
    """Invert the same points by each method, and all points by exact sweeps.

    Arguments:
        invert: Inverts a flow by a method.
        z: Noise, `(N, features)`.
        few: The number of points for each method; slow methods cannot have more.

    Returns:
        A record for each of `elflow.transforms.METHODS`, and one for exact sweeps over all points.

    Example:
        >>> flow = elflow.ELF(features=2, transforms=1, units=4, hidden_features=(8,))
        >>> def invert(z, method):
        ...     with torch.no_grad():
        ...         return flow.inverse(z, method=method, return_info=True)
        >>> records = compare_methods(invert, torch.randn(10, 2), few=3)
        >>> [(record["method"], record["samples"]) for record in records]
        [('exact', 3), ('fixed-point', 3), ('sequential', 3), ('exact', 10)]
    """
    invert(z[:1], "exact")  # to warm up
    records, reference = [], None
    clock = time.process_time if z.device.type == "cpu" else time.perf_counter  # other processes do not disturb it
    for method, some in [*((method, z[:few]) for method in METHODS), ("exact", z)]:
        start = clock()
        x, info = invert(some, method)
        x = x.cpu()
        seconds = clock() - start
        reference = x if reference is None else reference
        difference = (x[:few].double() - reference[:few].double()).abs()
        largest = float(difference.max())
        records.append(
            {
                "method": method,
                "samples": len(some),
                "calls": list(info.calls),
                "residual": info.residual if math.isfinite(info.residual) else None,
                "converged": info.converged,
                "different": largest if math.isfinite(largest) else None,
                "n_different": int((difference != 0).sum()),
                "seconds": seconds,
            }
        )
    return records


class DigitsFlow(NamedTuple):
    """A flow over the 64 pixels of digits, dequantised and scaled to (0, 1)."""

    flow: elflow.ELF
    bits: float
    """Bits per dimension of test images."""

    @torch.no_grad()
    def invert(self, z: Tensor, method: str) -> tuple[Tensor, Any]:
        """Samples of noise `(N, 64)` by a method, and an `InverseInfo`."""
        x, info = self.flow.inverse(z, method=method, return_info=True)
        return x, info


def fit_digits(sizes: Record, steps: int, learning_rate: float, seed: int) -> DigitsFlow:
    """Fit a flow to the pixels of scikit-learn's digits."""
    x, test = (part.flatten(1).float() for part in load_images(Plan(), "digits", None))

    def dequantize(rows: Tensor) -> Tensor:
        return (rows + torch.rand_like(rows)) / LEVELS

    def draw_batch() -> Tensor:
        return dequantize(x[torch.randint(len(x), (128,))])

    flow, _ = fit_batches(elflow.ELF(x.shape[1], **sizes, scale=False), draw_batch, steps, learning_rate, seed=seed)
    with torch.no_grad():
        nats = flow().log_prob(dequantize(test)) - x.shape[1] * math.log(LEVELS)
    return DigitsFlow(flow, float(-nats.mean()) / (x.shape[1] * math.log(2)))


def invert_images(model: elflow.ImageELF, classes: Tensor | None) -> Invert:
    """A function that decodes noise by a method, with the classes in turn if the model has classes."""

    def invert(z: Tensor, method: str) -> tuple[Tensor, Any]:
        c = None if classes is None else classes.repeat(-(-len(z) // len(classes)))[: len(z)]
        x, info = model.decode(z, c, method=method, return_info=True)
        return x, info

    return invert


def _prepare_mnist(plan: Plan, settings: Record, folder: Path) -> tuple[Any, Tensor | None, Record]:
    """A model of MNIST, its classes, and a record about it."""
    if "model" in settings:
        model, classes = load_model(plan)
        path = find_model(plan)
        training = None if path is None else read_training(path)
        trained = "" if training is None else f", trained for {training.steps:,} steps, {_format_time(training)}"
        return model, classes, {"source": f"{settings['model']} of the data folder{trained}"}
    x, test = load_images(plan, "mnist", settings["file"])
    is_small = settings["scale"] == "cpu"
    recipe = shorten_recipe(image_recipe(settings["scale"]), settings["steps"], 2 if is_small else None)
    n_validation = min(100 if is_small else 5_000, max(1, len(x) // 10))
    flow, seed = preset("mnist", settings["scale"]).build(), settings["seed"]
    model, training = train_images(flow, recipe, x, None, n_validation, seed, folder, settings, plan.device)
    steps = int(training.history[-1]["step"])
    bits = score_images(model.to(plan.device), spread(test, 200))["bits"]
    source = f"trained here for {steps:,} steps, {_format_time(training)}"
    return model, None, {"steps": steps, "bits": bits, "source": source}


def _format_time(training: Training) -> str:
    return f"{format_duration(training.seconds)} of wall-clock time"


def missing(plan: Plan) -> list[str]:
    if find_model(plan) is not None:
        return []
    return [f"{line}; or a trained model of it, as {MODEL}" for line in list_missing(plan, ["mnist"])]


# --- the report -------------------------------------------------------------------------------------------------------


def report(plan: Plan, records: dict[str, Record], folder: Path) -> Report:
    ordered = [records[name] for name in TITLES if name in records]
    tables = [_tabulate_calls(record) for record in ordered] + [_tabulate_times(ordered)]
    _draw(folder / "calls.png", ordered)
    caption = (
        "Evaluations of each layer's hypernetwork for the slowest sample, from the data's side to the noise's. All "
        "methods invert the same points; the dotted line is the maximum for the fixed point."
    )
    text = "\n\n".join(_describe(record) for record in ordered)
    text += (
        "\n\nThe paper inverts by the fixed-point iteration x <- y - g(x), here with at most 1,000 steps for each "
        "layer. Exact sweeps compute the networks from the current guess and invert each of them in closed form, for "
        "all coordinates at once; on CPUs those of an image row by row, counted in whole images."
    )
    return Report(text, tables, {"calls.png": caption})


def _tabulate_calls(record: Record) -> Table:
    rows = []
    for each in record["methods"]:
        calls = each["calls"]
        rows.append(
            [
                f"ELF, {METHOD_TITLES[each['method']]}",
                f"{each['samples']:,}",
                f"{sum(calls):,}",
                _format_calls(calls),
                _residual(each),
                "yes" if each["converged"] else "no",
                _format_number(each["different"], ".1e" if record["flow_of"] == "digits" else ".0f"),
            ]
        )
    differs = "largest difference" if record["flow_of"] == "digits" else "largest difference of a pixel"
    columns = ["method", "samples", "network evaluations", "per layer", "residual", "converged", differs]
    bits = f", {record['bits']:.3f} bits per dimension of test images" if "bits" in record else ""
    note = (
        f"The flow: {record['source']}{bits}. Slow methods draw few samples. Calls are those of the slowest sample, so "
        "that more samples may need more. Differences are from exact sweeps over the same noise."
    )
    return Table(f"{TITLES[record['flow_of']]}: network evaluations", columns, rows, note)


def _format_calls(calls: list[int]) -> str:
    """All numbers if they are few, their range otherwise."""
    if len(calls) <= 4:
        return ", ".join(f"{count:,}" for count in calls)
    return f"{min(calls):,} to {max(calls):,} in {len(calls)} layers"


def _tabulate_times(records: list[Record]) -> Table:
    rows = []
    for record in records:
        few = {each["method"]: each for each in record["methods"][: len(METHODS)]}
        for each in record["methods"]:
            ratio = each["seconds"] / each["samples"] / (few["exact"]["seconds"] / few["exact"]["samples"])
            rows.append(
                [
                    f"ELF, {METHOD_TITLES[each['method']]}",
                    TITLES[record["flow_of"]],
                    f"{each['samples']:,}",
                    f"{each['seconds']:.2f}",
                    f"{each['seconds'] / each['samples']:.2g}",
                    f"{ratio:.2f}",
                ]
            )
    columns = ["method", "flow", "samples", "seconds", "seconds per sample", "relative to exact sweeps"]
    return Table("Times", columns, rows, "CPU time, measured once: it varies between runs.")


def _describe(record: Record) -> str:
    by_method = {each["method"]: each for each in record["methods"][: len(METHODS)]}
    exact, fixed, sequential = by_method["exact"], by_method["fixed-point"], by_method["sequential"]
    calls = {name: sum(each["calls"]) for name, each in by_method.items()}
    ended = "converged" if fixed["converged"] else "did not converge"
    many = record["methods"][-1]
    return (
        f"{TITLES[record['flow_of']]}, a flow of {record['features']} values and {len(exact['calls'])} layers, "
        f"{record['source']}: for {exact['samples']} samples, exact sweeps took {calls['exact']:,} network evaluations "
        f"to a residual of {_residual(exact)}; the paper's fixed point took {calls['fixed-point']:,} and {ended}, with "
        f"a residual of {_residual(fixed)}; one coordinate after the other took {calls['sequential']:,}, to a residual "
        f"of {_residual(sequential)}. Exact sweeps over {many['samples']:,} samples took {sum(many['calls']):,}."
    )


def _residual(each: Record) -> str:
    return _format_number(each["residual"], ".1e")


def _format_number(value: float | None, spec: str) -> str:
    return "not finite" if value is None else format(value, spec)


def _draw(path: Path, records: list[Record]) -> None:
    widths = [max(2.2, 0.42 * len(record["methods"][0]["calls"])) for record in records]
    size = (3.2 + 1.15 * sum(widths), 3.8)
    ratios = {"width_ratios": widths}
    with draw_figure(path, columns=len(records), figsize=size, gridspec_kw=ratios) as (figure, axes):
        for place, record in zip(axes[0], records, strict=True):
            _draw_calls(place, record)
        axes[0, 0].set_ylabel("network evaluations")
        handles, labels = axes[0, 0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside upper center", ncols=len(METHODS), frameon=False)


def _draw_calls(place: Axes, record: Record) -> None:
    width = 0.27
    for i, each in enumerate(record["methods"][: len(METHODS)]):
        x = [layer + (i - 1) * width for layer in range(1, len(each["calls"]) + 1)]
        color, label = COLORS[each["method"]], METHOD_TITLES[each["method"]]
        bars = place.bar(x, each["calls"], 0.92 * width, color=color, label=label)
        if len(each["calls"]) <= 4:
            place.bar_label(bars, fontsize=7, padding=2)
    place.axhline(1_000, color=SOFT, linestyle=":", linewidth=1)
    place.set_yscale("log")
    place.set_ylim(1, 3_000)
    place.set_xticks(range(1, len(record["methods"][0]["calls"]) + 1))
    place.set(title=TITLES[record["flow_of"]], xlabel="layer")


EXPERIMENT = with_claims(Experiment("sampling", "Cost of sampling", jobs, work, report, missing))
