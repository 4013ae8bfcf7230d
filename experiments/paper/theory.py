"""The paper's bounds and proofs, checked by numbers: convergence, log-determinants, universality, and parameters."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

import elflow
from elflow.activations import FELU
from elflow.flows.elf import MaskedELFTransform
from elflow.functional import elf, elf_inverse, lipschitz
from experiments.framework.experiment import Experiment, Job, Plan, Record, Report, Table
from experiments.framework.measure import count_parameters
from experiments.paper.claims import with_claims
from experiments.paper.universality import approximate, approximate_conditional

__all__ = ["EXPERIMENT"]

BOUNDS = (0.5, 0.9, 0.99)
NETWORKS, UNITS = 2_000, 32
EPSILON = 0.05
DIMENSIONS = (8, 16, 32, 64)
ITERATED_BOUNDS = (0.5, 0.9, 0.99, 0.999)
TOLERANCES = (1e-3, 1e-6, 1e-9)
"""Tolerances of the fixed point, largest first."""
MAX_STEPS = 5_000
TINY = 1e-13
"""Errors below this are rounding."""


def jobs(plan: Plan) -> list[Job]:
    names = ["convergence", "determinants", "lemma-a2", "lemma-felu", "theorem-a1", "parameters", "iterations"]
    return [Job(name, {"check": name, "networks": plan.scaled(NETWORKS), "seed": plan.seed}) for name in names]


def work(plan: Plan, settings: Record, folder: Path) -> Record:
    torch.manual_seed(settings["seed"])
    return CHECKS[settings["check"]](settings["networks"])


def check_convergence(count: int) -> Record:
    """Equation 3.2 with its two sides: the error after n steps over `Lip^n / (1 - Lip) |x_1 - x_0|`, which must not
    exceed 1 in one dimension, and does over whole vectors."""
    ratios = {f"{c:g}": _find_worst_of_networks(c, count) for c in BOUNDS}
    vectors = {f"{c:g}": _find_worst_of_vectors(c, count // 10 + 1) for c in BOUNDS}
    return {"ratios": ratios, "vectors": vectors, "networks": count}


def _find_worst_of_networks(c: float, count: int) -> float:
    w1, b1, w2 = torch.randn(3, count, UNITS, dtype=torch.float64)
    b2, y = torch.randn(2, count, dtype=torch.float64)
    x = elf_inverse(y, w1, b1, w2, b2, bound=c)
    constant = lipschitz(w1, b1, w2).clamp(max=c)
    return _find_worst_ratio(lambda guess: guess + y - elf(guess, w1, b1, w2, b2, bound=c)[0], y, x, constant)


@torch.no_grad()
def _find_worst_of_vectors(c: float, count: int, features: int = 8) -> float:
    layer = MaskedELFTransform(features, units=UNITS, bound=c).double()
    for p in layer.hyper.parameters():
        p.add_(0.3 * torch.randn_like(p))
    t, y = layer(), torch.randn(count, features, dtype=torch.float64)
    return _find_worst_ratio(
        lambda guess: guess + y - t(guess), y, t.inv(y), torch.full((count,), c, dtype=torch.float64)
    )


def _find_worst_ratio(step: Callable[[Tensor], Tensor], start: Tensor, x: Tensor, constant: Tensor) -> float:
    """The largest error relative to its bound over 60 steps."""

    def norm(value: Tensor) -> Tensor:
        return value.abs() if value.ndim == 1 else value.norm(dim=-1)

    guess, worst, scale = start, 0.0, norm(step(start) - start) / (1 - constant)
    for n in range(1, 61):
        guess = step(guess)
        error, limit = norm(guess - x), constant**n * scale
        clear = error > TINY * (1 + norm(x)) / (1 - constant)
        if clear.any():
            worst = max(worst, float((error / limit)[clear].max()))
    return worst


@torch.no_grad()
def check_iterations(count: int) -> Record:
    """Steps of the fixed point until the largest change is below a tolerance, by bound: of one-dimensional networks,
    and of a transformation of a vector."""
    rows, count = [], max(1, count // 4)
    for c in ITERATED_BOUNDS:
        w1, b1, w2 = torch.randn(3, count, UNITS, dtype=torch.float64)
        b2, y = torch.randn(2, count, dtype=torch.float64)
        layer = MaskedELFTransform(8, units=UNITS, bound=c).double()
        for p in layer.hyper.parameters():
            p.add_(0.1 * torch.randn_like(p))
        t, start = layer(), torch.randn(64, 8, dtype=torch.float64)
        networks = _count_steps(lambda x: x + y - elf(x, w1, b1, w2, b2, bound=c)[0], y)  # noqa: B023
        vectors = _count_steps(lambda x: x + start - t(x), start)  # noqa: B023
        rows.append({"bound": c, "networks": networks, "vectors": vectors})
    return {"rows": rows, "tolerances": list(TOLERANCES), "limit": MAX_STEPS, "networks": count}


def _count_steps(step: Callable[[Tensor], Tensor], guess: Tensor) -> list[int | None]:
    """The number of steps for each of `TOLERANCES`, or None if there are more than `MAX_STEPS`."""
    counts: list[int | None] = []
    for n in range(1, MAX_STEPS + 1):
        new = step(guess)
        change, guess = float((new - guess).abs().max()), new
        while len(counts) < len(TOLERANCES) and change < TOLERANCES[len(counts)]:
            counts.append(n)
        if len(counts) == len(TOLERANCES):
            break
    return counts + [None] * (len(TOLERANCES) - len(counts))


def check_determinants(count: int) -> Record:
    """Log-determinants relative to the bounds d ln(1 - c) and d ln(1 + c), over random transformations."""
    features, low, high = 4, 0.0, 0.0
    for c in BOUNDS:
        layer = MaskedELFTransform(features, units=UNITS, bound=c, parametrization="weights").double()
        with torch.no_grad():
            for p in layer.hyper.parameters():
                p.add_(0.5 * torch.randn_like(p))
            ladj = layer().call_and_ladj(3 * torch.randn(count, features, dtype=torch.float64))[1]
        low = max(low, float(ladj.min()) / (features * math.log1p(-c)))
        high = max(high, float(ladj.max()) / (features * math.log1p(c)))
    return {"low": low, "high": high, "points": count}


def check_lemma_a2(count: int) -> Record:
    """An increasing map of two coordinates as an affine map of x + g with a 1-Lipschitz g, and the map by ELF."""
    axis = torch.linspace(-1, 1, 401, dtype=torch.float64)

    def target(x: Tensor, c: Tensor) -> Tensor:  # increasing in x, with slopes from 0.2 to 4.6
        return (1 + c**2) * (0.2 * x + 0.7 * x**3) + c.sin()

    slopes = torch.stack([target(axis, c).diff() / axis.diff() for c in axis])
    half = float(slopes.max()) / 2  # D of the lemma: the supremum over both coordinates
    steepest = float((slopes / half - 1).abs().max())
    error = 0.0
    for c in axis[::40]:
        w1, b1, w2, b2 = approximate(lambda x, c=c: target(x, c) / half - x, -1, 1, EPSILON / half)  # type: ignore[misc]
        g = b2 + FELU(w1 * axis[:, None] + b1) @ w2
        error = max(error, float((half * (axis + g) - target(axis, c)).abs().max()))
    return {"steepest": steepest, "error": error, "epsilon": EPSILON}


def check_lemma_felu(count: int) -> Record:
    """The lemma for FELU on three functions, with the printed sign of the second ramp and with the right one."""
    x = torch.linspace(-3, 3, 3001, dtype=torch.float64)
    errors: list[float] = []
    printed: list[float] = []
    constant = 0.0
    for function in (torch.sin, torch.abs, lambda x: torch.sin(20 * x) / 20):
        w1, b1, w2, b2 = approximate(function, -3, 3, EPSILON)
        as_printed = torch.cat([w2[: len(w2) // 2], -w2[len(w2) // 2 :]])
        for found, weights in ((errors, w2), (printed, as_printed)):
            found.append(float((b2 + FELU(w1 * x[:, None] + b1) @ weights - function(x)).abs().max()))
        constant = max(constant, float(lipschitz(w1, b1, w2)))
    return {"error": max(errors), "as_printed": max(printed), "epsilon": EPSILON, "constant": constant}


def check_theorem_a1(count: int) -> Record:
    """Two coordinates: sin(x_1), and sin(x_2 + x_1) by a hypernetwork of x_1."""
    hyper = approximate_conditional(lambda x, c: torch.sin(x + c), -2, 2, EPSILON / 2, nodes=161)
    axis = torch.linspace(-2, 2, 301, dtype=torch.float64)
    error, constant, units = 0.0, 0.0, 0
    for c in axis[::5]:
        w1, b1, w2, b2 = (w[0] for w in hyper(c[None]))
        error = max(error, float((b2 + FELU(w1 * axis[:, None] + b1) @ w2 - torch.sin(axis + c)).abs().max()))
        constant, units = max(constant, float(lipschitz(w1, b1, w2))), len(w1)
    w1, b1, w2, b2 = approximate(torch.sin, -2, 2, EPSILON)
    first = float((b2 + FELU(w1 * axis[:, None] + b1) @ w2 - axis.sin()).abs().max())
    return {"error": math.hypot(first, error), "constant": constant, "epsilon": EPSILON * 2**0.5, "units": units}


def check_parameters(count: int) -> Record:
    """Parameters of a transformation by its features, for hidden layers of 8 d, with and without `rank`."""
    sizes: dict[str, list[int]] = {"full": [], "rank": []}
    for d in DIMENSIONS:
        for name, rank in (("full", None), ("rank", 8)):
            flow = elflow.ELF(
                d, transforms=1, units=32, hidden_features=(8 * d,) * 2, rank=rank, parametrization="weights"
            )
            sizes[name].append(count_parameters(flow))
    power = math.log(sizes["full"][-1] / sizes["full"][0]) / math.log(DIMENSIONS[-1] / DIMENSIONS[0])
    return {"features": list(DIMENSIONS), **sizes, "power": power}


CHECKS = {
    "convergence": check_convergence,
    "iterations": check_iterations,
    "determinants": check_determinants,
    "lemma-a2": check_lemma_a2,
    "lemma-felu": check_lemma_felu,
    "theorem-a1": check_theorem_a1,
    "parameters": check_parameters,
}


def report(plan: Plan, records: dict[str, Record], folder: Path) -> Report:
    tables = []
    if one := records.get("convergence"):
        rows = [[c, f"{one['ratios'][c]:.3g}", f"{one['vectors'][c]:.3g}"] for c in one["ratios"]]
        note = (
            "The largest error of the fixed-point iteration over 60 steps, relative to the bound of equation 3.2, for "
            f"{one['networks']:,} random networks. Above 1 the bound does not hold: over vectors, the constants do not "
            "limit how a coordinate depends on the others."
        )
        tables.append(Table("Convergence", ["constant", "one dimension", "vectors of 8"], rows, note))
    if one := records.get("iterations"):
        tables.append(_tabulate_iterations(one))
    if one := records.get("parameters"):
        rows = [[str(d), f"{a:,}", f"{b:,}"] for d, a, b in zip(one["features"], one["full"], one["rank"], strict=True)]
        note = f"One transformation with two hidden layers of 8 d and 32 units; it grows as d^{one['power']:.2f}."
        tables.append(Table("Parameters", ["features d", "full", "rank=8"], rows, note))
    return Report("The bounds and constructions of the paper, evaluated.", tables)


def _tabulate_iterations(one: Record) -> Table:
    columns = [f"{kind}, {tolerance:.0e}" for kind in ("networks", "vectors") for tolerance in one["tolerances"]]
    rows = [
        [f"{row['bound']:g}", *("-" if n is None else f"{n:,}" for n in (*row["networks"], *row["vectors"]))]
        for row in one["rows"]
    ]
    note = (
        f"Steps of the fixed point until no value changes by more than the tolerance: {one['networks']:,} random "
        f"one-dimensional networks, and 64 vectors of 8 values; - for more than {one['limit']:,}."
    )
    return Table("Iterations", ["constant", *columns], rows, note)


EXPERIMENT = with_claims(Experiment("theory", "Bounds and proofs", jobs, work, report))
