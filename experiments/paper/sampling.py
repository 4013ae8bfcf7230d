"""Sampling: exact sweeps, the paper's fixed point, and one number after the other, from the same noise.

Two flows are inverted: one over the 64 numbers of scikit-learn's digits, and one over images of MNIST, which is
`mnist.elf` of the data folder if there is one, or is trained for a while.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

import elflow
from elflow.flows import preset
from elflow.training import image_recipe, train
from elflow.transforms import METHODS
from experiments.data import images as _image_data
from experiments.data.images import MODEL, given
from experiments.framework import figure as _figure
from experiments.framework.experiment import Experiment, Job, Plan, Record, Report, Table
from experiments.paper._image_fit import bits_of, shortened, trained

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["EXPERIMENTS"]

STEPS = {"digits": 600, "mnist": 100}
"""Of the trainings at the scale of CPUs."""
PAPER_STEPS = 20_000
"""Of MNIST's at the scale of the paper: how sampling goes is seen long before a training ends."""
FLOW: dict[str, Any] = {"transforms": 3, "units": 16, "hidden_features": [256, 256]}
LEVELS = 17
FEW, MANY = {"digits": 20, "mnist": 4}, {"digits": 1_000, "mnist": 32}
"""How many samples are drawn by every method, and how many by exact sweeps alone."""
TITLES = {"digits": "64 numbers (digits)", "mnist": "MNIST"}
NAMES = {"exact": "exact sweeps", "fixed-point": "fixed point (the paper's)", "sequential": "one after the other"}
COLORS = {"exact": "#1d6b4f", "fixed-point": "#c0392b", "sequential": "#b8860b"}

Invert = Callable[[Tensor, str], tuple[Tensor, Any]]
"""Of noise and a method, samples and how it went."""


def _jobs(plan: Plan) -> list[Job]:
    jobs = [_job(plan, "digits", {"steps": plan.steps(STEPS["digits"]), "flow": FLOW})]
    if given(plan) is not None:
        jobs.append(_job(plan, "mnist", {"model": MODEL}))
    elif (file := _image_data.find(plan, "mnist")) is not None:
        steps = STEPS["mnist"] if plan.scale == "cpu" else PAPER_STEPS
        jobs.append(
            _job(
                plan,
                "mnist",
                {"file": file, "scale": plan.scale, "steps": plan.steps(steps)},
            )
        )
    return jobs


def _job(plan: Plan, name: str, settings: Record) -> Job:
    stamp = plan.stamp(*(settings[key] for key in ("model", "file") if key in settings))
    same = {"stamp": stamp, "few": FEW[name], "many": MANY[name], "seed": plan.seed}
    return Job(name, {"flow_of": name, **settings, **same})


def _work(plan: Plan, settings: Record, folder: Path) -> Record:
    torch.manual_seed(settings["seed"])
    flow_of = settings["flow_of"]
    if flow_of == "digits":
        found, invert, features = _digits_flow(settings)
        where = "cpu"
    else:
        found, invert, features, where = _mnist_flow(plan, settings, folder)
    torch.manual_seed(settings["seed"] + 1)
    z = torch.randn(settings["many"], features).to(where)
    return {"flow_of": flow_of, "features": features, **found, "methods": _measured(invert, z, settings["few"])}


def _measured(invert: Invert, z: Tensor, few: int) -> list[Record]:
    """How each method inverts the same few points, and exact sweeps all of them."""
    invert(z[:1], "exact")  # to warm up
    found, reference = [], None
    for method, some in [*((method, z[:few]) for method in METHODS), ("exact", z)]:
        start = time.perf_counter()
        x, info = invert(some, method)
        x = x.cpu()
        seconds = time.perf_counter() - start
        different = float((x[:few].double() - (x if reference is None else reference)[:few].double()).abs().max())
        reference = x if reference is None else reference
        found.append(
            {
                "method": method,
                "samples": len(some),
                "calls": list(info.calls),
                "residual": info.residual if math.isfinite(info.residual) else None,
                "converged": info.converged,
                "different": different if math.isfinite(different) else None,
                "seconds": seconds,
            }
        )
    return found


def _digits_flow(settings: Record) -> tuple[Record, Invert, int]:
    """A flow over the pixels of digits, dequantised, as 64 numbers in (0, 1)."""
    x, test = (part.flatten(1).float() for part in _image_data.images(Plan(), "digits", None))

    def noisy(rows: Tensor) -> Tensor:
        return (rows + torch.rand_like(rows)) / LEVELS

    flow = elflow.ELF(x.shape[1], **settings["flow"])
    steps = settings["steps"]
    flow, _ = train(
        flow, lambda: noisy(x[torch.randint(len(x), (128,))]), steps, rate=2e-3, halve_every=max(1, steps // 4)
    )
    with torch.no_grad():
        nats = flow().log_prob(noisy(test)) - x.shape[1] * math.log(LEVELS)

    @torch.no_grad()
    def invert(z: Tensor, method: str) -> tuple[Tensor, Any]:
        found: tuple[Tensor, Any] = flow.inverse(z, method=method, return_info=True)
        return found

    bits = float(-nats.mean()) / (x.shape[1] * math.log(2))
    return {"steps": steps, "bits": bits, "source": f"trained here for {steps:,} steps"}, invert, x.shape[1]


def _mnist_flow(plan: Plan, settings: Record, folder: Path) -> tuple[Record, Invert, int, str]:
    where = plan.device
    if "model" in settings:
        model, classes = _image_data.load_given(plan)
        found: Record = {"source": f"{settings['model']} of the data folder"}
    else:
        x, test = _image_data.images(plan, "mnist", settings["file"])
        chosen = preset("mnist", settings["scale"])
        rounds: dict[str, Any] = {"rounds": 2 if settings["scale"] == "cpu" else None}
        recipe = shortened(image_recipe(settings["scale"]), settings["steps"], **rounds)
        held_out = 100 if settings["scale"] == "cpu" else 5_000
        held_out = min(held_out, max(1, len(x) // 10))
        seed = settings["seed"]
        model, training = trained(chosen.build(), recipe, x, None, held_out, seed, folder, settings, where)
        steps, classes = int(training.history[-1]["step"]), None
        model = model.to(where)
        scored = bits_of(model, _image_data.spread(test, 200))
        found = {"steps": steps, "bits": scored["bits"], "source": f"trained here for {steps:,} steps"}
    model = model.to(where)

    def invert(z: Tensor, method: str) -> tuple[Tensor, Any]:
        c = None if classes is None else classes.repeat(-(-len(z) // len(classes)))[: len(z)]
        drawn: tuple[Tensor, Any] = model.decode(z, c, method=method, return_info=True)
        return drawn

    return found, invert, model.flow.features, where


def _missing(plan: Plan) -> list[str]:
    if given(plan) is not None:
        return []
    lines = _image_data.absent(plan, ["mnist"])
    return [f"{line}; or a trained model of it, as {MODEL}" for line in lines]


# --- the report -------------------------------------------------------------------------------------------------------


def _report(plan: Plan, records: dict[str, Record], folder: Path) -> Report:
    ordered = [records[name] for name in TITLES if name in records]
    tables = [_calls(record) for record in ordered] + [_seconds(ordered)]
    _draw(folder / "calls.png", ordered)
    caption = (
        "Evaluations of each layer's hypernetwork, for the sample that took longest, from the data's side to the "
        "noise's. All methods invert the same few points; the dotted line is where the fixed point is cut off."
    )
    text = "\n\n".join(_said(record) for record in ordered)
    text += (
        "\n\nThe paper inverts by the fixed point x <- y - g(x), here cut off after 1,000 steps a layer. Exact sweeps "
        "compute the networks from the current guess and invert each of them in closed form, for all numbers at once; "
        "on CPUs those of an image for one row of pixels after the other, counted in whole images."
    )
    return Report(text, tables, {"calls.png": caption})


def _calls(record: Record) -> Table:
    rows = []
    for each in record["methods"]:
        calls = each["calls"]
        rows.append(
            [
                f"ELF, {NAMES[each['method']]}",
                f"{each['samples']:,}",
                f"{sum(calls):,}",
                _listed(calls),
                _residual(each),
                "yes" if each["converged"] else "no",
                _shown(each["different"], ".1e" if record["flow_of"] == "digits" else ".0f"),
            ]
        )
    differs = "greatest difference" if record["flow_of"] == "digits" else "greatest difference of a pixel"
    columns = ["method", "samples", "network calls", "of each layer", "residual", "converged", differs]
    bits = f", {record['bits']:.3f} bits per dimension of test images" if "bits" in record else ""
    note = (
        f"The flow: {record['source']}{bits}. Slow methods draw few samples: calls are those of the sample that took "
        "longest, so that more samples may have more. Differences are from exact sweeps over the same noise."
    )
    return Table(f"{TITLES[record['flow_of']]}: network calls", columns, rows, note)


def _listed(calls: list[int]) -> str:
    """Few numbers as they are, many as their range."""
    if len(calls) <= 4:
        return ", ".join(f"{count:,}" for count in calls)
    return f"{min(calls):,} to {max(calls):,} in {len(calls)} layers"


def _seconds(records: list[Record]) -> Table:
    rows = []
    for record in records:
        few = {each["method"]: each for each in record["methods"][: len(METHODS)]}
        for each in record["methods"]:
            ratio = each["seconds"] / each["samples"] / (few["exact"]["seconds"] / few["exact"]["samples"])
            rows.append(
                [
                    f"ELF, {NAMES[each['method']]}",
                    TITLES[record["flow_of"]],
                    f"{each['samples']:,}",
                    f"{each['seconds']:.2f}",
                    f"{each['seconds'] / each['samples']:.2g}",
                    f"{ratio:.2f}",
                ]
            )
    columns = ["method", "flow", "samples", "seconds", "seconds of a sample", "times exact sweeps of as few"]
    return Table("Times", columns, rows, "Each measured once: they vary from run to run, network calls do not.")


def _said(record: Record) -> str:
    by = {each["method"]: each for each in record["methods"][: len(METHODS)]}
    exact, fixed, one = by["exact"], by["fixed-point"], by["sequential"]
    calls = {name: sum(each["calls"]) for name, each in by.items()}
    ended = "it had converged" if fixed["converged"] else "it had not converged"
    many = record["methods"][-1]
    return (
        f"{TITLES[record['flow_of']]}, a flow of {record['features']} numbers and {len(exact['calls'])} layers, "
        f"{record['source']}: exact sweeps took {calls['exact']:,} network calls to a residual of {_residual(exact)}; "
        f"the paper's fixed point took {calls['fixed-point']:,}, and {ended}, with a residual of {_residual(fixed)}; "
        f"one number after the other took {calls['sequential']:,}, to {_residual(one)}. That is for {exact['samples']} "
        f"samples by each; exact sweeps over {many['samples']:,} took {sum(many['calls']):,} calls."
    )


def _residual(each: Record) -> str:
    return _shown(each["residual"], ".1e")


def _shown(value: float | None, how: str) -> str:
    return "not finite" if value is None else format(value, how)


def _draw(path: Path, records: list[Record]) -> None:
    plt = _figure.pyplot()
    widths = [max(2.2, 0.42 * len(record["methods"][0]["calls"])) for record in records]
    with plt.rc_context(_figure.STYLE):
        figure, axes = plt.subplots(
            1,
            len(records),
            figsize=(3.2 + 1.15 * sum(widths), 3.8),
            layout="constrained",
            squeeze=False,
            gridspec_kw={"width_ratios": widths},
        )
        for place, record in zip(axes[0], records, strict=True):
            _draw_calls(place, record)
        axes[0, 0].set_ylabel("network calls")
        handles, labels = axes[0, 0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside upper center", ncols=len(METHODS), frameon=False)
        _figure.save(figure, path)
        plt.close(figure)


def _draw_calls(place: Axes, record: Record) -> None:
    width = 0.27
    for i, each in enumerate(record["methods"][: len(METHODS)]):
        x = [layer + (i - 1) * width for layer in range(1, len(each["calls"]) + 1)]
        bars = place.bar(x, each["calls"], 0.92 * width, color=COLORS[each["method"]], label=NAMES[each["method"]])
        if len(each["calls"]) <= 4:
            place.bar_label(bars, fontsize=7, padding=2)
    place.axhline(1_000, color=_figure.SOFT, linestyle=":", linewidth=1)
    place.set_yscale("log")
    place.set_ylim(1, 3_000)
    place.set_xticks(range(1, len(record["methods"][0]["calls"]) + 1))
    place.set(title=TITLES[record["flow_of"]], xlabel="layer")


EXPERIMENTS = {
    "sampling": Experiment("sampling", "What sampling costs", _jobs, _work, _report, _missing),
}
