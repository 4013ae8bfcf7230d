"""Flows with ReLU networks against flows with networks of continuous slope, on a uniform distribution."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.distributions import Transform, constraints
from torch.nn.functional import relu
from torch.nn.utils.parametrizations import spectral_norm
from zuko.lazy import LazyTransform

from elflow._checks import check_choice
from elflow.flows import ELF
from elflow.flows.layered import LayeredFlow
from elflow.functional import bumps
from elflow.nn import ActNorm, draw_initial_phi
from experiments.framework.experiment import Experiment, Job, Plan, Record, Report, Table, group_records
from experiments.framework.figure import ACCENT, GREEN, INK, SOFT, draw_figure
from experiments.framework.measure import count_parameters, mean_and_error
from experiments.framework.training import fit_batches
from experiments.paper.claims import with_claims

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["EXPERIMENT", "MODELS", "build", "relu_lipschitz"]

UNITS = 2048
BOUND = 0.99
BATCH_SIZE = 128
LEARNING_RATE = 5e-3
N_SEEDS = 3
MIN_SHARE = 0.1
"""Fraction of the affine gap that a difference must exceed to support the paper's claim."""
GRID = 10_000
N_ROUNDS = 60
AFFINE = math.log(math.pi * math.e / 6) / 2
"""Gap of a normal distribution with the mean and variance of U(0, 1), in nats."""

MODELS = {
    "elf-felu": "ELF, FELU",
    "elf-relu": "ELF, ReLU",
    "elf-fixed": "ELF, ReLU with fixed corners",
    "residual-elu": "Residual flow, ELU",
    "residual-relu": "Residual flow, ReLU",
}
COLORS = {
    "elf-felu": GREEN,
    "elf-relu": "#b8860b",
    "elf-fixed": "#7d8a97",
    "residual-elu": "#4a5fa5",
    "residual-relu": ACCENT,
}


def _activate(u: Tensor, activation: str) -> tuple[Tensor, Tensor]:
    """Value and slope of an activation."""
    slope = (u > 0).to(u.dtype) if activation == "relu" else u.clamp(max=0).exp()
    return relu(u) if activation == "relu" else slope - 1 + relu(u), slope


def relu_lipschitz(w1: Tensor, b1: Tensor, w2: Tensor) -> Tensor:
    """Exact Lipschitz constant of one ReLU network `(H,)` in O(H log H), fast enough for 2048 units.

    The slope is a staircase that jumps by abs(w1) w2 at the corner of each unit, from left to right. The result may be
    too large if units share a corner up to rounding, because their jumps are taken one after the other.

    Example:
        >>> from elflow.activations import RELU
        >>> from elflow.functional import lipschitz
        >>> w1, b1, w2 = torch.randn(3, 100, dtype=torch.float64)
        >>> torch.allclose(relu_lipschitz(w1, b1, w2), lipschitz(w1, b1, w2, RELU))
        True
    """
    corners = torch.argsort(-b1.detach() / w1.detach())
    left = (w1 * w2 * (w1 < 0)).sum(-1, keepdim=True)
    return torch.cat([left, left + (w1.abs() * w2)[corners].cumsum(-1)]).abs().amax()


class NetworkTransform(Transform):
    """`y = x + b2 + sum_i w2_i sigma(w1_i x + b1_i)` for points `(..., 1)`, without an inverse."""

    domain = constraints.real_vector
    codomain = constraints.real_vector
    bijective = True

    def __init__(self, w1: Tensor, b1: Tensor, w2: Tensor, b2: Tensor, activation: str) -> None:
        super().__init__()
        self.parameters = w1, b1, w2, b2
        self.activation = activation

    def _call(self, x: Tensor) -> Tensor:
        return self.call_and_ladj(x)[0]

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        return self.call_and_ladj(x)[1]

    def call_and_ladj(self, x: Tensor) -> tuple[Tensor, Tensor]:
        w1, b1, w2, b2 = self.parameters
        value, slope = _activate(w1 * x + b1, self.activation)
        return x + (value @ w2 + b2)[..., None], torch.log1p(slope @ (w1 * w2))


class ReluELF(LazyTransform):
    """The middle layer of `elflow.ELF(features=1, activation=RELU)`, faster for many units.

    Arguments:
        units: The number of units.
        corners: Whether corners are learned; otherwise only the heights of bumps and the shift are.
    """

    still: Tensor

    def __init__(self, units: int, corners: bool) -> None:
        super().__init__()
        self.units = units
        start = draw_initial_phi(1, units)[0]
        count = 0 if corners else units + 2 * ((units + 1) // 2)  # sharpness, place and width come before the heights
        self.register_buffer("still", start[:count])
        self.phi = nn.Parameter(start[count:])

    def forward(self, c: Tensor | None = None) -> NetworkTransform:
        w1, b1, w2, b2 = bumps(torch.cat([self.still, self.phi]), self.units)
        steepest = relu_lipschitz(w1.double(), b1.double(), w2.double()).to(w2.dtype)
        return NetworkTransform(w1, b1, w2 * (BOUND / steepest.clamp(min=BOUND)), b2, "relu")


class Residual(LazyTransform):
    """The layer of a residual flow: a network whose two linear maps are divided by their spectral norms.

    With norms of one, each of many units would receive nearly nothing of x. So the input of the network is scaled up
    and its output scaled down, which the affine layers around it could do as well: its constant does not change.
    """

    def __init__(self, units: int, activation: str) -> None:
        super().__init__()
        self.into: Any = spectral_norm(nn.Linear(1, units))
        self.out: Any = spectral_norm(nn.Linear(units, 1))
        self.scale = math.sqrt(units)
        self.activation = activation

    def forward(self, c: Tensor | None = None) -> NetworkTransform:
        w1, w2 = self.scale * self.into.weight[:, 0], BOUND / self.scale * self.out.weight[0]
        return NetworkTransform(w1, self.into.bias, w2, self.out.bias[0], self.activation)


def build(model: str, units: int = UNITS) -> LayeredFlow:
    """A one-dimensional flow, one of `MODELS`, between two learned affine layers.

    Example:
        >>> flow = build("residual-elu", units=16)
        >>> flow().log_prob(torch.rand(5, 1)).shape
        torch.Size([5])
    """
    check_choice("model", model, MODELS)
    if model == "elf-felu":
        return ELF(features=1, transforms=1, units=units, bound=BOUND, scale=False)
    middle: LazyTransform
    if model.startswith("elf"):
        middle = ReluELF(units, corners=model == "elf-relu")
    else:
        middle = Residual(units, model.removeprefix("residual-"))
    first = ActNorm(1).requires_grad_(model != "elf-fixed")  # it would move the corners, too
    return LayeredFlow([first, middle, ActNorm(1)], features=1, context=0)


def jobs(plan: Plan) -> list[Job]:
    steps = plan.scaled(2_000 if plan.scale == "cpu" else 20_000)
    same = {"steps": steps, "batch_size": BATCH_SIZE, "learning_rate": LEARNING_RATE, "units": UNITS}
    return [
        Job(f"{model}-{seed}", {"model": model, "seed": seed, **same})
        for seed in plan.seeds(N_SEEDS)  # outermost: a run that is cut short has fewer seeds of everything
        for model in MODELS
    ]


def work(plan: Plan, settings: Record, folder: Path) -> Record:
    """Fit a flow to U(0, 1). The gap is an integral over (0, 1), and so without sampling error."""
    device = plan.device
    torch.manual_seed(settings["seed"])
    fitted, training = fit_batches(
        build(settings["model"], settings["units"]),
        lambda: torch.rand(settings["batch_size"], 1),
        settings["steps"],
        settings["learning_rate"],
        rounds=N_ROUNDS,
        seed=settings["seed"],
        device=device,
    )
    inside = (torch.arange(GRID) + 0.5) / GRID
    return {
        "gap": -_log_density(fitted, inside.to(device)).mean().item(),
        "steps": [entry["step"] for entry in training.history],
        "losses": [round(-entry["training"], 5) for entry in training.history],
        "density": [round(p, 5) for p in _log_density(fitted, _make_grid().to(device)).exp().tolist()],
        "parameters": count_parameters(fitted),
    }


def _make_grid() -> Tensor:
    """The points at which densities are drawn."""
    return torch.linspace(-0.25, 1.25, 601)


@torch.no_grad()
def _log_density(flow: LayeredFlow, x: Tensor) -> Tensor:
    return torch.cat([flow().log_prob(part[:, None]).double().cpu() for part in x.split(1000)])


def report(plan: Plan, records: dict[str, Record], folder: Path) -> Report:
    runs = group_records(records, MODELS)
    _draw(folder / "relu-flow.png", runs)
    rows = []
    for model, some in runs.items():
        mean, error = mean_and_error([record["gap"] for record in some])
        rows.append([MODELS[model], f"{some[0]['parameters']:,}", f"{-mean:.4f} ± {error:.4f}", f"{mean:.4f}"])
    rows.append(["Affine layers alone: a normal distribution", "2", f"{-AFFINE:.4f}", f"{AFFINE:.4f}"])
    columns = ["Flow", "Parameters", "Mean log-density", "Gap to the bound"]
    note = (
        f"Nats, integrated over (0, 1), mean and standard error over {len(some)} seeds. The bound is 0, minus the "
        "entropy. The last row is not fitted: it is the best normal distribution, -ln(pi e / 6) / 2."
    )
    table = Table(f"Uniform distribution on (0, 1), {UNITS} units", columns, rows, note)
    caption = "Learned densities (all seeds), and the loss during training (first seed); dotted: affine layers alone."
    return Report(_describe(runs), [table], {"relu-flow.png": caption})


def _describe(runs: dict[str, list[Record]]) -> str:
    gaps = {model: [record["gap"] for record in some] for model, some in runs.items()}
    reason = (
        "The slope of a ReLU network is a staircase. Moving a corner changes the slope only at the points that it "
        "passes, so that the log-determinant of a batch has no gradient with respect to the corners, although its "
        "expectation depends on them: the gradient is not that of the expected likelihood. The paper finds that ReLU "
        f"flows with {UNITS} units do not learn a uniform distribution, and that flows with a continuous slope do."
    )
    lines = []
    for family, rough, smooth in (
        ("ELF", "elf-relu", "elf-felu"),
        ("The residual flow", "residual-relu", "residual-elu"),
    ):
        if rough in gaps and smooth in gaps:
            lines.append(_compare(family, gaps[rough], gaps[smooth], MODELS[smooth].split(", ")[1]))
    if "elf-fixed" in gaps and "elf-relu" in gaps:
        (a, a_error), (b, b_error) = (mean_and_error(gaps[model]) for model in ("elf-relu", "elf-fixed"))
        is_better = a - b > 2 * math.hypot(a_error, b_error)
        lines.append(
            "To test whether the gradient of the corners is the cause, ReLU was also fitted with corners, and the "
            "affine layer before them, fixed at their initial values. The heights of the steps and the affine layer "
            f"behind are learned, for which the gradient is right. The gap is {b:.4f} ± {b_error:.4f} instead of "
            f"{a:.4f} ± {a_error:.4f}. "
            + ("So ReLU learns once its corners are fixed." if is_better else "So it is not the cause, or not alone.")
        )
    return "\n\n".join([*lines, reason])


def _compare(family: str, rough: list[float], smooth: list[float], name: str) -> str:
    """Whether the gaps of a family of flows reproduce the paper's claim about ReLU."""
    (a, a_error), (b, b_error) = mean_and_error(rough), mean_and_error(smooth)
    difference, error = a - b, math.hypot(a_error, b_error)
    is_significant = min(len(rough), len(smooth)) > 1 and abs(difference) > 2 * error
    if is_significant and difference > MIN_SHARE * AFFINE:
        verdict = f"reproduced. With ReLU the gap is larger than with {name}"
    elif is_significant and difference < 0:
        verdict = f"refuted. With ReLU the gap is smaller than with {name}"
    else:
        verdict = f"neither reproduced nor refuted. The difference between ReLU and {name} is small or not significant"
    closed = [f"{round(100 * (1 - gap / AFFINE))} %" for gap in (a, b)]
    return (
        f"**{family}**: {verdict}, by {abs(difference):.4f} ± {error:.4f} nats. Of the gap that the affine layers "
        f"alone leave, ReLU closes {closed[0]}, {name} {closed[1]}."
    )


def _draw(path: Path, runs: dict[str, list[Record]]) -> None:
    x = _make_grid()
    normal = torch.exp(-6 * (x - 0.5) ** 2) * math.sqrt(6 / math.pi)
    with draw_figure(path, columns=3, figsize=(12, 3.9), width_ratios=(1, 1, 0.9)) as (figure, axes):
        for place, family, title in ((axes[0, 0], "elf", "ELF"), (axes[0, 1], "residual", "Residual flow")):
            place.plot(
                [-0.25, 0, 0, 1, 1, 1.25], [0, 0, 1, 1, 0, 0], color=SOFT, linewidth=4, alpha=0.5, label="uniform"
            )
            place.plot(x, normal, color=INK, linestyle=":", linewidth=1, label="affine layers alone")
            for model, some in runs.items():
                if model.startswith(family):
                    for record in some:
                        label = MODELS[model].split(", ")[1] if record is some[0] else None
                        place.plot(x, record["density"], color=COLORS[model], linewidth=1.1, alpha=0.8, label=label)
            place.set(title=f"{title}, {UNITS} units", xlabel="x", ylabel="density", ylim=(-0.05, 1.95))
            place.legend(frameon=False, fontsize=8, ncols=2, loc="upper center")
        _draw_losses(axes[0, 2], runs)
        figure.suptitle("A uniform distribution, with and without a continuous slope", fontsize=12)


def _draw_losses(place: Axes, runs: dict[str, list[Record]]) -> None:
    place.axhline(AFFINE, color=INK, linestyle=":", linewidth=1)
    for model, some in runs.items():
        style = "-" if model.startswith("elf") else "--"
        first = some[0]
        place.plot(first["steps"], first["losses"], style, color=COLORS[model], linewidth=1.2, label=MODELS[model])
    place.set(title="Training", xlabel="step", ylabel="minus mean log-density", ylim=(-0.02, 0.42))
    place.legend(frameon=False, fontsize=8, loc="upper right")


EXPERIMENT = with_claims(Experiment("relu-flow", "ReLU in a flow, on a uniform distribution", jobs, work, report))
