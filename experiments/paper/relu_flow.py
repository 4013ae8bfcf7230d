"""Flows of ReLU networks against flows of networks with a continuous slope, on a uniform distribution."""

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
from elflow.training import train
from experiments.framework.experiment import Experiment, Job, Plan, Record, Report, Table
from experiments.framework.figure import ACCENT, INK, SOFT, STYLE, pyplot, save
from experiments.framework.measure import mean_and_error

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["EXPERIMENTS", "MODELS", "build", "relu_lipschitz"]

UNITS = 2048
BOUND = 0.99
BATCH = 128
RATE = 5e-3
SEEDS = 3
LITTLE = 0.1
"""Of the gap that the affine layers alone leave: what a difference must exceed to speak for the paper."""
GRID = 10_000
WINDOWS = 60
AFFINE = math.log(math.pi * math.e / 6) / 2
"""By how much a normal distribution of the right mean and variance falls short of U(0, 1), in nats."""

MODELS = {
    "elf-felu": "ELF, FELU",
    "elf-relu": "ELF, ReLU",
    "elf-fixed": "ELF, ReLU whose corners stay",
    "residual-elu": "Residual flow, ELU",
    "residual-relu": "Residual flow, ReLU",
}
COLORS = {
    "elf-felu": "#1d6b4f",
    "elf-relu": "#b8860b",
    "elf-fixed": "#7d8a97",
    "residual-elu": "#4a5fa5",
    "residual-relu": ACCENT,
}


def _activate(u: Tensor, activation: str) -> tuple[Tensor, Tensor]:
    """Its value and its slope."""
    slope = (u > 0).to(u.dtype) if activation == "relu" else u.clamp(max=0).exp()
    return relu(u) if activation == "relu" else slope - 1 + relu(u), slope


def relu_lipschitz(w1: Tensor, b1: Tensor, w2: Tensor) -> Tensor:
    """As `elflow.functional.lipschitz` of one ReLU network `(H,)`, in O(H log H), which 2048 units need.

    The slope is a staircase: from the left end to the right one it jumps by abs(w1) w2 at the corner of each unit.
    Units that share a corner up to rounding are taken one after the other, so that it may then come out too large.

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
    """`y = x + b2 + sum_i w2_i sigma(w1_i x + b1_i)` of points `(..., 1)`: for densities, not for samples."""

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
    """What `elflow.ELF(features=1, activation=RELU)` has in its middle, but quick for many units.

    Arguments:
        units: The number of units.
        corners: Whether corners may move. Else only the heights of bumps are learnt, and the shift.
    """

    still: Tensor

    def __init__(self, units: int, corners: bool) -> None:
        super().__init__()
        self.units = units
        start = draw_initial_phi(1, units)[0]
        count = 0 if corners else units + 2 * ((units + 1) // 2)  # sharpness, place and width come first
        self.register_buffer("still", start[:count])
        self.phi = nn.Parameter(start[count:])

    def forward(self, c: Tensor | None = None) -> NetworkTransform:
        w1, b1, w2, b2 = bumps(torch.cat([self.still, self.phi]), self.units)
        steepest = relu_lipschitz(w1.double(), b1.double(), w2.double()).to(w2.dtype)
        return NetworkTransform(w1, b1, w2 * (BOUND / steepest.clamp(min=BOUND)), b2, "relu")


class Residual(LazyTransform):
    """The layer of a residual flow: a network whose two linear maps are divided by their spectral norms.

    With norms of one, each of many units would see next to nothing of x. So x is scaled up for the network, and what
    comes out scaled down again, which the affine layers around it could do as well: the constant stays what it is.
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
    """A flow in one dimension, one of `MODELS`, between two learnt affine layers.

    Example:
        >>> flow = build("residual-elu", units=16)
        >>> flow().log_prob(torch.rand(5, 1)).shape
        torch.Size([5])
    """
    check_choice("model", model, MODELS)
    if model == "elf-felu":
        return ELF(features=1, transforms=1, units=units, bound=BOUND)
    middle: LazyTransform
    if model.startswith("elf"):
        middle = ReluELF(units, corners=model == "elf-relu")
    else:
        middle = Residual(units, model.removeprefix("residual-"))
    first = ActNorm(1).requires_grad_(model != "elf-fixed")  # which would move the corners, too
    return LayeredFlow([first, middle, ActNorm(1)], features=1, context=0)


def jobs(plan: Plan) -> list[Job]:
    steps = plan.steps(2_000 if plan.scale == "cpu" else 20_000)
    same = {"steps": steps, "batch": BATCH, "rate": RATE, "units": UNITS}
    return [
        Job(f"{model}-{seed}", {"model": model, "seed": seed, **same}) for model in MODELS for seed in plan.seeds(SEEDS)
    ]


def work(plan: Plan, settings: Record, folder: Path) -> Record:
    """Fits a flow to U(0, 1). Its mean log-density there is an integral, so that the gap is free of noise."""
    device = plan.device
    torch.manual_seed(settings["seed"])
    flow = build(settings["model"], settings["units"]).to(device)
    steps = settings["steps"]
    averaged, history = train(
        flow,
        lambda: torch.rand(settings["batch"], 1).to(device),
        steps=steps,
        rate=settings["rate"],
        halve_every=max(1, steps // 4),
    )
    window = max(1, steps // WINDOWS)
    losses = torch.tensor(history.loss[: steps // window * window]).reshape(-1, window).mean(-1)
    inside = (torch.arange(GRID) + 0.5) / GRID
    return {
        "gap": -_log_density(averaged, inside.to(device)).mean().item(),
        "window": window,
        "losses": [round(loss, 5) for loss in losses.tolist()],
        "density": [round(p, 5) for p in _log_density(averaged, _places().to(device)).exp().tolist()],
        "parameters": sum(p.numel() for p in flow.parameters() if p.requires_grad),
    }


def _places() -> Tensor:
    """Where densities are drawn."""
    return torch.linspace(-0.25, 1.25, 601)


@torch.no_grad()
def _log_density(flow: LayeredFlow, x: Tensor) -> Tensor:
    return torch.cat([flow().log_prob(part[:, None]).double().cpu() for part in x.split(1000)])


def report(plan: Plan, records: dict[str, Record], folder: Path) -> Report:
    found = {model: [r for key, r in records.items() if key.startswith(model)] for model in MODELS}
    found = {model: of for model, of in found.items() if of}
    _draw(folder / "relu-flow.png", found)
    rows = []
    for model, of in found.items():
        mean, error = mean_and_error([record["gap"] for record in of])
        rows.append([MODELS[model], f"{of[0]['parameters']:,}", f"{-mean:.4f} ± {error:.4f}", f"{mean:.4f}"])
    rows.append(["Affine layers alone: a normal distribution", "2", f"{-AFFINE:.4f}", f"{AFFINE:.4f}"])
    columns = ["Flow", "Parameters", "Mean log-density", "Gap to the bound"]
    note = (
        f"Nats, integrated over (0, 1), mean and standard error over {len(of)} seeds. The bound is 0, minus the "
        "entropy. The last row is not fitted: it is the best that a normal distribution can do, -ln(pi e / 6) / 2."
    )
    table = Table(f"Uniform distribution on (0, 1), {UNITS} units", columns, rows, note)
    caption = (
        "Densities that were learnt (all seeds), and the loss on the way (first seed); dotted, the affine layers alone."
    )
    return Report(_text(found), [table], {"relu-flow.png": caption})


def _text(found: dict[str, list[Record]]) -> str:
    gaps = {model: [record["gap"] for record in of] for model, of in found.items()}
    reason = (
        "ReLU's slope is a staircase. Moving a corner changes the slope at those points only that it passes, so that "
        "the log-determinant of a batch has no gradient in where the corners are, although its mean depends on it: "
        "there the gradient is not that of the likelihood. As we understand the paper, it finds that ReLU flows do not "
        f"learn a uniform distribution with {UNITS} units, and that flows with a continuous slope do."
    )
    lines = []
    for family, rough, smooth in (
        ("ELF", "elf-relu", "elf-felu"),
        ("The residual flow", "residual-relu", "residual-elu"),
    ):
        if rough in found and smooth in found:
            (a, a_error), (b, b_error) = (mean_and_error(gaps[model]) for model in (rough, smooth))
            difference, error = a - b, math.hypot(a_error, b_error)
            name = MODELS[smooth].split(", ")[1]
            sure = min(len(found[rough]), len(found[smooth])) > 1 and abs(difference) > 2 * error
            if sure and difference > LITTLE * AFFINE:
                verdict = f"reproduced. With ReLU the gap is larger than with {name}"
            elif sure and difference < 0:
                verdict = f"refuted. With ReLU the gap is smaller than with {name}"
            else:
                verdict = f"neither reproduced nor refuted. ReLU and {name} differ by little, or by less than is sure"
            closed = [f"{round(100 * (1 - gap / AFFINE))} %" for gap in (a, b)]
            lines.append(
                f"**{family}**: {verdict}, by {abs(difference):.4f} ± {error:.4f} nats. Of the gap that the affine "
                f"layers alone leave, ReLU closes {closed[0]}, {name} {closed[1]}."
            )
    if "elf-fixed" in found and "elf-relu" in found:
        (a, a_error), (b, b_error) = (mean_and_error(gaps[model]) for model in ("elf-relu", "elf-fixed"))
        better = a - b > 2 * math.hypot(a_error, b_error)
        lines.append(
            "To see whether it is the gradient in the corners, ReLU was also fitted with corners, and the affine layer "
            "before them, that stay as they began. The heights of the steps and the affine layer behind are learnt, "
            f"for which the gradient is right. The gap is {b:.4f} ± {b_error:.4f} instead of {a:.4f} ± {a_error:.4f}. "
            + ("So ReLU learns once nothing moves its corners." if better else "So it is not, or not alone.")
        )
    return "\n\n".join([*lines, reason])


def _draw(path: Path, found: dict[str, list[Record]]) -> None:
    plt = pyplot()
    x = _places()
    normal = torch.exp(-6 * (x - 0.5) ** 2) * math.sqrt(6 / math.pi)
    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(1, 3, figsize=(12, 3.9), layout="constrained", width_ratios=(1, 1, 0.9))
        for place, family, title in ((axes[0], "elf", "ELF"), (axes[1], "residual", "Residual flow")):
            place.plot(
                [-0.25, 0, 0, 1, 1, 1.25], [0, 0, 1, 1, 0, 0], color=SOFT, linewidth=4, alpha=0.5, label="uniform"
            )
            place.plot(x, normal, color=INK, linestyle=":", linewidth=1, label="affine layers alone")
            for model, of in found.items():
                if model.startswith(family):
                    for record in of:
                        label = MODELS[model].split(", ")[1] if record is of[0] else None
                        place.plot(x, record["density"], color=COLORS[model], linewidth=1.1, alpha=0.8, label=label)
            place.set(title=f"{title}, {UNITS} units", xlabel="x", ylabel="density", ylim=(-0.05, 1.95))
            place.legend(frameon=False, fontsize=8, ncols=2, loc="upper center")
        _draw_losses(axes[2], found)
        figure.suptitle("A uniform distribution, with and without a continuous slope", fontsize=12)
        save(figure, path)
        plt.close(figure)


def _draw_losses(place: Axes, found: dict[str, list[Record]]) -> None:
    place.axhline(AFFINE, color=INK, linestyle=":", linewidth=1)
    for model, of in found.items():
        steps = [of[0]["window"] * (k + 1) for k in range(len(of[0]["losses"]))]
        style = "-" if model.startswith("elf") else "--"
        place.plot(steps, of[0]["losses"], style, color=COLORS[model], linewidth=1.2, label=MODELS[model])
    place.set(title="Training", xlabel="step", ylabel="minus mean log-density", ylim=(-0.02, 0.42))
    place.legend(frameon=False, fontsize=8, loc="upper right")


EXPERIMENTS = {
    "relu-flow": Experiment("relu-flow", "ReLU in a flow, on a uniform distribution", jobs, work, report),
}
