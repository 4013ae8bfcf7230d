"""The paper's first figures: activations, one-layer networks, their slopes and what decides their Lipschitz constants.

python -m elflow.reproduce.networks --output networks.png
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from elflow.activations import FELU, QELU, RELU, PiecewiseQuadratic
from elflow.functional import elf, elf_inverse, lipschitz
from elflow.reproduce._figure import ACCENT, INK, SOFT, STYLE, pyplot, save

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["breakpoints", "draw", "random_network"]

COLORS = {FELU: "#1d6b4f", RELU: "#b8860b", QELU: "#4a5fa5"}


def random_network(units: int, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """A network whose ramps lie within about three of zero: w1, b1 and w2, `(units,)` each.

    Example:
        >>> w1, b1, w2 = random_network(units=5, seed=0)
        >>> lipschitz(w1, b1, w2).dtype
        torch.float64
    """
    generator = torch.Generator().manual_seed(seed)
    uniform, sign, place, weight = torch.rand(4, units, generator=generator, dtype=torch.float64)
    w1 = (0.5 + 2 * uniform) * torch.where(sign < 0.5, -1, 1)
    return w1, -w1 * (6 * place - 3), 2 * weight - 1


def breakpoints(w1: Tensor, b1: Tensor, activation: PiecewiseQuadratic) -> Tensor:
    """The points between which the slope of the network is a straight line, in order.

    Example:
        >>> breakpoints(torch.tensor([2.0]), torch.tensor([4.0]), FELU)
        tensor([-2.5000, -2.0000])
    """
    points = w1.new_tensor(activation.breakpoints)
    return ((points[:, None] - b1) / w1).flatten().sort().values


def draw(path: Path, units: int = 5, seed: int = 11, bound: float = 0.99) -> dict[str, float]:
    """Draws the figure into a PNG and returns the Lipschitz constant that it shows for each activation."""
    plt = pyplot()
    weights = random_network(units, seed)
    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(2, 3, figsize=(12, 6.4), layout="constrained")
        _draw_activations(axes[0, 0], axes[1, 0])
        constants = {}
        for column, activation in enumerate((RELU, FELU), start=1):
            constants[activation.name] = _draw_network(axes[:, column], weights, activation, bound)
        figure.suptitle(f"One-layer networks of {units} units and their exact Lipschitz constants", fontsize=12)
        save(figure, path)
        plt.close(figure)
    return constants


def _draw_activations(above: Axes, below: Axes) -> None:
    u = torch.linspace(-4, 2, 601, dtype=torch.float64)
    for activation, color in COLORS.items():
        above.plot(u, activation(u), color=color, label=activation.name)
        below.plot(u, activation.slope(u), color=color)
    above.plot(u, torch.nn.functional.elu(u), color=SOFT, linestyle="--", label="ELU")
    below.plot(u, torch.where(u < 0, u.exp(), 1), color=SOFT, linestyle="--")
    above.set(title="Activations", ylabel="value")
    below.set(xlabel="u", ylabel="slope")
    above.legend(frameon=False)


def _draw_network(axes: list[Axes], weights: tuple[Tensor, ...], activation: PiecewiseQuadratic, bound: float) -> float:
    w1, b1, w2 = weights
    zero = w1.new_zeros(())
    corners = breakpoints(w1, b1, activation)
    # Both sides of each corner, so that the jumps of ReLU's slope are drawn upright.
    x = torch.cat([torch.linspace(-5, 5, 2001, dtype=w1.dtype), corners - 1e-9, corners + 1e-9]).sort().values
    u = w1 * x[:, None] + b1
    g, slope = (w2 * activation(u)).sum(-1), (w1 * w2 * activation.slope(u)).sum(-1)
    constant = lipschitz(w1, b1, w2, activation).item()
    y, _ = elf(x, w1, b1, w2, zero, bound, activation)
    back = elf_inverse(y, w1, b1, w2, zero, bound, activation)
    steepest = x[slope.abs().argmax()].item()

    color, above, below = COLORS[activation], *axes
    above.plot(x, g, color=color, label="g(x)")
    above.plot(x, y, color=INK, linewidth=1, label=f"x + s g(x), s = {min(1, bound / constant):.2f}")
    above.plot(y, back, color=INK, linewidth=1, linestyle="--", label="its inverse")
    above.plot([-5, 5], [-5, 5], color=SOFT, linewidth=0.7)
    above.set(title=f"{activation.name} network", xlabel="x", xlim=(-5, 5), ylim=(-5, 5), aspect="equal")
    above.legend(frameon=False)
    below.plot(x, slope, color=color)
    for line in (constant, -constant):
        below.axhline(line, color=ACCENT, linestyle=":", linewidth=1)
    for side in (-1e-9, 1e-9):
        at_corners = (w1 * w2 * activation.slope(w1 * (corners[:, None] + side) + b1)).sum(-1)
        below.plot(corners, at_corners, "o", color=color, markersize=3.5)
    below.plot(steepest, slope[slope.abs().argmax()], "o", color=ACCENT, markersize=8, fillstyle="none")
    below.set(xlabel="x", ylabel="slope g'(x)", xlim=(-5, 5), title=f"Lip(g) = {constant:.4f} at x = {steepest:.3f}")
    return constant


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=Path("networks.png"), help="the picture (%(default)s)")
    parser.add_argument("--units", type=int, default=5, help="units of each network (%(default)s)")
    parser.add_argument("--seed", type=int, default=11, help="which random network (%(default)s)")
    options = parser.parse_args()
    if options.units < 1:
        parser.error(f"--units must be at least 1, got {options.units}")
    for name, constant in draw(options.output, options.units, options.seed).items():
        print(f"{name} network of {options.units} units: exact Lipschitz constant {constant:.6f}")
    print(f"The picture is at {options.output}")


if __name__ == "__main__":
    main()
