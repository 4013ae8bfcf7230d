"""Learning abs(x) with 1-Lipschitz networks: exact Lipschitz constants against spectral norms."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrizations import spectral_norm
from torch.nn.utils.parametrize import remove_parametrizations

from elflow._checks import check_choice
from elflow.activations import FELU, RELU, PiecewiseQuadratic
from elflow.functional import lipschitz
from experiments.framework.experiment import Experiment, Job, Plan, Record, Report, Table, group_records
from experiments.framework.figure import GREEN, INK, SOFT, draw_figure
from experiments.framework.measure import count_parameters, mean_and_error
from experiments.paper.claims import with_claims

__all__ = ["EXPERIMENT", "METHODS", "ExactNetwork", "build", "one_layer_bound"]

WIDTH = 64
BATCH_SIZE = 256
LEARNING_RATE = 1e-2
N_SEEDS = 3
GRID = 10_000
N_DRAWN = 401

METHODS = {
    "exact-relu": "Exact constant, ReLU, 1 hidden layer",
    "exact-felu": "Exact constant, FELU, 1 hidden layer",
    "spectral-1": "Spectral norms, ReLU, 1 hidden layer",
    "spectral-2": "Spectral norms, ReLU, 2 hidden layers",
    "spectral-3": "Spectral norms, ReLU, 3 hidden layers",
}
COLORS = dict(zip(METHODS, ("#b8860b", GREEN, "#d98880", "#c0392b", "#7b241c"), strict=True))


class ExactNetwork(nn.Module):
    """A network of one hidden layer, divided by its Lipschitz constant where that is above one.

    Arguments:
        units: The number of units.
        activation: The activation of the units.

    Example:
        >>> network = ExactNetwork(units=8, activation=RELU)
        >>> network(torch.zeros(5)).shape
        torch.Size([5])
        >>> bool(network.constant() <= 1)
        True
    """

    def __init__(self, units: int, activation: PiecewiseQuadratic) -> None:
        super().__init__()
        self.activation = activation
        w1 = torch.empty(units).uniform_(0.5, 2.5) * torch.where(torch.rand(units) < 0.5, -1, 1)
        self.w1 = nn.Parameter(w1)
        self.b1 = nn.Parameter(-w1 * torch.empty(units).uniform_(-1, 1))
        self.w2 = nn.Parameter(0.5 * units**-0.5 * torch.randn(units))
        self.b2 = nn.Parameter(torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        scale = 1 / self._constant().clamp(min=1)
        return self.activation(self.w1 * x[:, None] + self.b1) @ (scale * self.w2) + self.b2

    def constant(self) -> Tensor:
        """The exact Lipschitz constant of the function that `forward` computes."""
        return self._constant().clamp(max=1)

    def _constant(self) -> Tensor:
        return lipschitz(self.w1, self.b1, self.w2, self.activation)


class SpectralNetwork(nn.Sequential):
    """A ReLU network whose linear maps are divided by their spectral norms."""

    def __init__(self, units: int, layers: int) -> None:
        widths = [1, *[units] * layers]
        parts: list[nn.Module] = []
        for before, after in pairwise(widths):
            parts += [spectral_norm(nn.Linear(before, after)), nn.ReLU()]
        super().__init__(nn.Unflatten(-1, (-1, 1)), *parts, spectral_norm(nn.Linear(units, 1)), nn.Flatten(0))

    def constant(self) -> Tensor:
        """The product of the spectral norms, which bounds the Lipschitz constant."""
        norms = [torch.linalg.matrix_norm(part.weight, ord=2) for part in self if isinstance(part, nn.Linear)]
        return torch.stack(norms).prod()

    @torch.no_grad()
    def settle(self) -> None:
        """Divide each map by its exact norm: torch's estimate lags a little behind during training."""
        for part in self:
            if isinstance(part, nn.Linear):
                remove_parametrizations(part, "weight")
                part.weight.div_(torch.linalg.matrix_norm(part.weight, ord=2))


def build(method: str, units: int = WIDTH) -> ExactNetwork | SpectralNetwork:
    """A network of one of `METHODS` with random weights.

    Example:
        >>> torch.allclose(build("spectral-3").constant(), torch.tensor(1.0), atol=0.1)
        True
    """
    check_choice("method", method, METHODS)
    if method.startswith("exact"):
        return ExactNetwork(units, RELU if method == "exact-relu" else FELU)
    return SpectralNetwork(units, int(method[-1]))


def one_layer_bound() -> float:
    """Lower bound on the mean squared error on [-1, 1] for one hidden layer with spectral norms of one.

    The slope changes by abs(w1_i w2_i) at the corner of unit i, and by at most one over all units (Cauchy-Schwarz). So
    the even part of the network has slopes of at most 1/2, and abs(x) minus it grows by at least x/2 on [0, 1], which
    has the variance 1/48.

    Example:
        >>> round(one_layer_bound(), 4)
        0.0208
    """
    return 1 / 48


def jobs(plan: Plan) -> list[Job]:
    steps = plan.scaled(2_000 if plan.scale == "cpu" else 20_000)
    same = {"steps": steps, "batch_size": BATCH_SIZE, "learning_rate": LEARNING_RATE, "units": WIDTH}
    return [
        Job(f"{method}-{seed}", {"method": method, "seed": seed, **same})
        for seed in plan.seeds(N_SEEDS)  # outermost: a run that is cut short has fewer seeds of everything
        for method in METHODS
    ]


def work(plan: Plan, settings: Record, folder: Path) -> Record:
    """Fit a network to abs(x) on random points of [-1, 1]. The error is the integral over that interval."""
    torch.manual_seed(settings["seed"])
    network, steps = build(settings["method"], settings["units"]), settings["steps"]
    optimizer = torch.optim.Adam(network.parameters(), lr=settings["learning_rate"])
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    for _ in range(steps):
        x = 2 * torch.rand(settings["batch_size"]) - 1
        loss = (network(x) - x.abs()).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    with torch.no_grad():
        network.double()
        if isinstance(network, SpectralNetwork):
            network.settle()
        x = 2 * (torch.arange(GRID, dtype=torch.float64) + 0.5) / GRID - 1
        y = network(x)
        drawn = network(torch.linspace(-1, 1, N_DRAWN, dtype=torch.float64))
        return {
            "error": (y - x.abs()).square().mean().item(),
            "steepest": (y.diff() / x.diff()).abs().max().item(),
            "constant": network.constant().item(),
            "parameters": count_parameters(network),
            "drawn": [round(value, 6) for value in drawn.tolist()],
        }


def report(plan: Plan, records: dict[str, Record], folder: Path) -> Report:
    runs = group_records(records, METHODS)
    _draw(folder / "absolute-value.png", runs)
    rows = []
    for method, some in runs.items():
        mean, error = mean_and_error([record["error"] for record in some])
        rows.append(
            [
                METHODS[method],
                str(some[0]["parameters"]),
                f"{mean:.1e} ± {error:.0e}",
                f"{max(record['steepest'] for record in some):.4f}",
                f"{max(record['constant'] for record in some):.4f}",
            ]
        )
    columns = ["Network", "Parameters", "Mean squared error", "Largest slope", "Constant"]
    note = (
        f"Mean and standard error over {len(some)} seeds; slopes and constants are the maximum over seeds. The "
        "constant is exact for the first two networks, and the product of the spectral norms for the others. No "
        f"network with one hidden layer and spectral norms of one has an error below 1/48 = {one_layer_bound():.4f}."
    )
    caption = "Learned functions (first seed), and their distance from abs(x)."
    table = Table("abs(x) on [-1, 1], x uniform", columns, rows, note)
    return Report(_describe(runs), [table], {"absolute-value.png": caption})


def _describe(runs: dict[str, list[Record]]) -> str:
    exact = [record["error"] for method, some in runs.items() if method.startswith("exact") for record in some]
    spectral = [record["error"] for method, some in runs.items() if method.startswith("spectral") for record in some]
    text = (
        f"All networks have {WIDTH} units in each hidden layer and were trained on the same number of points, uniform "
        f"on [-1, 1], in batches of {BATCH_SIZE}. To represent abs(x), a network must have slopes of modulus one "
        "everywhere. With spectral norms of one, every layer must then preserve the norm of the gradient. A layer of "
        "ReLU units does so only where all units on the gradient's path are active, and a network for which that is "
        "true everywhere is linear (Anil, Lucas and Grosse, 2019). The exact constant is that of the network as a "
        "whole: its layers may have any slopes, and abs(x) = relu(x) + relu(-x) is such a network."
    )
    if exact and spectral:
        ratio = min(spectral) / max(exact)
        finding = (
            f"The worst fit with the exact constant has a mean squared error of {max(exact):.1e}, the best one with "
            f"spectral norms {min(spectral):.1e}, {ratio:.3g} times as much: "
            + ("spectral norms cannot represent abs(x)." if ratio > 10 else "not yet the expected difference.")
        )
        return f"{finding}\n\n{text}"
    return text


def _draw(path: Path, runs: dict[str, list[Record]]) -> None:
    x = torch.linspace(-1, 1, N_DRAWN, dtype=torch.float64)
    with draw_figure(path, columns=2, figsize=(11, 4.4)) as (figure, axes):
        left, right = axes[0]
        left.plot(x, x.abs(), color=SOFT, linewidth=5, alpha=0.5, label="abs(x)")
        for method, some in runs.items():
            y = torch.tensor(some[0]["drawn"], dtype=torch.float64)
            style = "--" if method == "exact-felu" else "-"
            left.plot(x, y, style, color=COLORS[method], linewidth=1.5, label=METHODS[method])
            right.plot(x, (y - x.abs()).abs().clamp(min=1e-6), color=COLORS[method], linewidth=1.2)
        left.set(title="Learned functions", xlabel="x", ylim=(-0.05, 1.65), yticks=[0, 0.25, 0.5, 0.75, 1])
        left.legend(frameon=False, loc="upper center", fontsize=8)
        right.set(title="Distance from abs(x)", xlabel="x", yscale="log", ylim=(1e-6, 1))
        right.tick_params(which="minor", left=False)
        right.grid(axis="y", color=SOFT, alpha=0.3)
        figure.suptitle("abs(x) with 1-Lipschitz networks", fontsize=12, color=INK)


EXPERIMENT = with_claims(
    Experiment("absolute-value", "Learning the absolute value under a Lipschitz constraint", jobs, work, report)
)
