"""A toy density fitted by ELF: how far it is from the truth, and contour plots of both.

python -m elflow.reproduce.toys eight-gaussians --output toys/
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from elflow import serialization
from elflow._files import replacing
from elflow.data import toy
from elflow.flows import ELF
from elflow.reproduce import _figure
from elflow.training import History, train

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["SETTINGS", "Fit", "Setting", "draw", "evaluate", "fit"]


@dataclass(frozen=True)
class Setting:
    """A flow, and how to train it: by default the paper's protocol for its toys."""

    flow: dict[str, Any]
    rate: float = 3e-3
    decay: float = 0.999
    batch: int = 128


SETTINGS = {
    "eight-gaussians": Setting({"transforms": 1, "units": 64, "hidden_features": (256,) * 4, "bound": 0.999}),
    "checkerboard": Setting({"transforms": 5, "units": 64, "hidden_features": (160,) * 4, "bound": 0.95}),
}
"""What the paper's two toys are fitted with: about 250 and 500 thousand parameters."""
OTHERS = Setting({"transforms": 3, "units": 64, "hidden_features": (128, 128)})


@dataclass(frozen=True)
class Fit:
    """A fitted flow, with averaged weights, and how good it is."""

    flow: ELF = field(repr=False)
    history: History = field(repr=False)
    gap: float
    """By how much the mean log-density is below the best possible, in nats."""
    error: float
    """The standard error of the gap."""
    seconds: float
    parameters: int


def fit(
    distribution: toy.Toy,
    setting: Setting,
    steps: int = 10_000,
    seed: int = 0,
    points: int = 100_000,
    progress: Callable[[int, float], None] | None = None,
) -> Fit:
    """Fits a flow to a toy distribution, in steps of which every quarter halves the rate.

    Example:
        >>> small = Setting({"transforms": 1, "units": 8, "hidden_features": (16,)})
        >>> result = fit(toy.Moons(), small, steps=20, points=1000)
        >>> result.gap > 0
        True
    """
    torch.manual_seed(seed)
    flow = ELF(features=2, **setting.flow)
    start = time.perf_counter()
    flow, history = train(
        flow,
        lambda: distribution.sample((setting.batch,)),
        steps=steps,
        rate=setting.rate,
        halve_every=max(1, steps // 4),
        decay=setting.decay,
        progress=progress,
    )
    seconds = time.perf_counter() - start
    gap, error = evaluate(flow, distribution, points)
    return Fit(flow, history, gap, error, seconds, sum(p.numel() for p in flow.parameters()))


def evaluate(flow: nn.Module, distribution: toy.Toy, points: int = 100_000) -> tuple[float, float]:
    """The gap to the best possible mean log-density on fresh points, and its standard error, in nats."""
    x = distribution.sample((points,))
    with torch.no_grad():
        difference = distribution.log_prob(x) - flow().log_prob(x)
    return difference.mean().item(), difference.std().item() / math.sqrt(points)


def draw(path: Path, name: str, distribution: toy.Toy, result: Fit, points: int = 20_000) -> None:
    """Draws the true density, that of the fit on the same colours, samples of both, and the training curve."""
    plt = _figure.pyplot()
    extent = 1.05 * float(distribution.sample((points,)).abs().max())
    with plt.rc_context(_figure.STYLE):
        figure, axes = plt.subplots(2, 3, figsize=(11, 7.4), layout="constrained")
        x, axis = _grid(extent)
        true = distribution.log_prob(x).exp()
        with torch.no_grad():
            fitted = result.flow().log_prob(x).exp()
            samples = result.flow().sample((points,))
        top = float(true.max())
        _draw_density(axes[0, 0], axis, true, top, "True density")
        _draw_density(axes[0, 1], axis, fitted, top, f"ELF, {result.gap:.4f} ± {result.error:.4f} nats from the truth")
        _draw_density(axes[0, 2], axis, (fitted - true).abs(), top, "How far they differ")
        for place, title, drawn in (
            (axes[1, 0], "Samples of the truth", distribution.sample((points,))),
            (axes[1, 1], "Samples of ELF", samples),
        ):
            place.plot(*drawn.T, ".", color=_figure.INK, markersize=1.2, alpha=0.35, rasterized=True)
            place.set(title=title, xlim=(-extent, extent), ylim=(-extent, extent), aspect="equal")
        _draw_curve(axes[1, 2], result.history, float(distribution.entropy()))
        figure.suptitle(f"{name}, {result.parameters:,} parameters, {result.seconds:.0f} s of training", fontsize=12)
        _figure.save(figure, path)
        plt.close(figure)


def _grid(extent: float, count: int = 300) -> tuple[torch.Tensor, torch.Tensor]:
    axis = torch.linspace(-extent, extent, count)
    return torch.cartesian_prod(axis, axis), axis


def _draw_density(place: Axes, axis: torch.Tensor, density: torch.Tensor, top: float, title: str) -> None:
    image = density.reshape(len(axis), len(axis)).T.numpy()
    levels = [top * step / 12 for step in range(13)]
    place.contourf(axis.numpy(), axis.numpy(), image.clip(0, top), levels=levels, cmap="Blues")
    place.set(title=title, aspect="equal")


def _draw_curve(place: Axes, history: History, entropy: float) -> None:
    loss = torch.tensor(history.loss)
    window = max(1, len(loss) // 100)
    smooth = loss[: len(loss) // window * window].reshape(-1, window).mean(-1)
    steps = window * (1 + torch.arange(len(smooth)))
    place.plot(steps, smooth, color=_figure.INK, linewidth=1, label="training batches")
    place.axhline(entropy, color=_figure.ACCENT, linestyle=":", linewidth=1, label="best possible")
    place.set(title="Minus mean log-density", xlabel="step", ylim=(entropy - 0.15, entropy + 1))
    place.legend(frameon=False)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", choices=toy.DISTRIBUTIONS, help="which distribution")
    parser.add_argument("--output", type=Path, default=Path("toys"), help="the folder for results (%(default)s)")
    parser.add_argument("--steps", type=int, default=10_000, help="training steps (%(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of weights and data (%(default)s)")
    options = parser.parse_args()
    if options.steps < 1:
        parser.error(f"--steps must be at least 1, got {options.steps}")
    distribution = toy.DISTRIBUTIONS[options.name]()

    def progress(step: int, loss: float) -> None:
        if step % max(1, options.steps // 10) == 0:
            print(
                f"step {step:6} of {options.steps}: {loss:.3f} nats, at best {distribution.entropy():.3f}", flush=True
            )

    setting = SETTINGS.get(options.name, OTHERS)
    result = fit(distribution, setting, options.steps, options.seed, progress=progress)
    picture = options.output / f"{options.name}.png"
    draw(picture, options.name, distribution, result)
    numbers = {"name": options.name, "steps": options.steps, "seed": options.seed, "setting": asdict(setting)}
    numbers |= {"gap": result.gap, "error": result.error, "seconds": result.seconds, "parameters": result.parameters}
    with replacing(options.output / f"{options.name}.json") as temporary:
        temporary.write_text(json.dumps(numbers, indent=2) + "\n")
    serialization.save(result.flow, options.output / f"{options.name}.elf")
    print(f"{result.gap:.4f} ± {result.error:.4f} nats from the truth with {result.parameters:,} parameters")
    print(f"The picture is at {picture}, the flow beside it: elflow.load('{picture.with_suffix('.elf')}')")


if __name__ == "__main__":
    main()
