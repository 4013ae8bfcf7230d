"""Two-dimensional toy distributions, each with its sampler, its exact log-density and its entropy.

They are torch distributions. The mean log-density of a model, on samples of one, is at most minus its entropy: the gap
between the two is the divergence of the model from the truth, zero for a perfect one.
"""

from __future__ import annotations

import math
from functools import cached_property

import numpy as np
import torch
from torch import Size, Tensor
from torch.distributions import Distribution, constraints

from elflow._checks import check_positive

__all__ = [
    "DISTRIBUTIONS",
    "Checkerboard",
    "Circles",
    "EightGaussians",
    "Moons",
    "Pinwheel",
    "Rings",
    "SwissRoll",
    "Toy",
    "TwoSpirals",
]

CHUNK = 1 << 22
"""How many numbers a log-density holds at a time."""


class Toy(Distribution):
    """A distribution on the plane. A new one has `draw`, `log_density` and `extent`."""

    arg_constraints: dict[str, constraints.Constraint] = {}  # noqa: RUF012
    support = constraints.real_vector
    extent = 5.0
    """All but a negligible part lies within so much of zero, in either coordinate."""
    finest = 0.05
    """The smallest scale on which the density changes."""

    def __init__(self) -> None:
        super().__init__(event_shape=Size([2]), validate_args=False)

    def sample(self, sample_shape: Size | list[int] | tuple[int, ...] = Size()) -> Tensor:  # noqa: B008
        """Points, `(*sample_shape, 2)`, in the default dtype, from torch's own generator."""
        shape = Size(sample_shape)
        return self.draw(shape.numel()).to(torch.get_default_dtype()).reshape(*shape, 2)

    def log_prob(self, value: Tensor) -> Tensor:
        """The exact log-density of points `(..., 2)`, in nats and float64, without gradients."""
        if value.shape[-1:] != (2,):
            raise ValueError(f"value must have the shape (..., 2), got {tuple(value.shape)}")
        points = value.detach().double().reshape(-1, 2)
        parts = [self.log_density(part) for part in points.split(max(1, CHUNK // self.terms))]
        return torch.cat(parts).reshape(value.shape[:-1]) if parts else points.new_zeros(value.shape[:-1])

    def entropy(self) -> Tensor:
        """The entropy in nats: minus the mean log-density that a perfect model has."""
        return torch.tensor(self._entropy, dtype=torch.float64)

    terms = 1
    """How many numbers `log_density` holds for each point."""

    def draw(self, n: int) -> Tensor:
        """n points, `(n, 2)`."""
        raise TypeError(f"{type(self).__name__} must define draw")

    def log_density(self, points: Tensor) -> Tensor:
        """The log-density at points `(n, 2)` of float64."""
        raise TypeError(f"{type(self).__name__} must define log_density")

    @cached_property
    def _entropy(self) -> float:
        # The trapezoidal rule, which converges faster than any power for a smooth density.
        count = math.ceil(2 * self.extent / (self.finest / 2))
        axis = torch.linspace(-self.extent, self.extent, count, dtype=torch.float64)
        p = self.log_prob(torch.cartesian_prod(axis, axis)).exp()
        return float(-torch.xlogy(p, p).sum() * (axis[1] - axis[0]) ** 2)


class Mixture(Toy):
    """Gaussians of one width around weighted centres; many of them along a curve are the curve, blurred.

    Between nodes of the Gauss-Legendre rule that lie closer than the width, the sum is the integral to rounding.
    """

    centres: Tensor
    weights: Tensor
    noise: float

    def __init__(self, centres: Tensor, weights: Tensor, noise: float) -> None:
        super().__init__()
        self.centres = centres
        self.weights = weights / weights.sum()
        self.noise = noise
        self.terms = len(centres)
        self.finest = noise
        self.extent = float(centres.abs().max()) + 8 * noise

    def log_density(self, points: Tensor) -> Tensor:
        squares = torch.cdist(points, self.centres, compute_mode="donot_use_mm_for_euclid_dist").square()
        logs = squares / (-2 * self.noise**2) + self.weights.log()
        return logs.logsumexp(-1) - math.log(2 * math.pi * self.noise**2)


class EightGaussians(Mixture):
    """Eight Gaussians on a circle of radius 4, everything divided by 1.414.

    Arguments:
        noise: The standard deviation of each, before the division.

    Example:
        >>> toy = EightGaussians()
        >>> x = toy.sample((1000,))
        >>> round(float(toy.entropy()), 4)
        2.8319
    """

    def __init__(self, noise: float = 0.5) -> None:
        check_positive("noise", noise)
        angle = torch.arange(8, dtype=torch.float64) * math.pi / 4
        super().__init__(4 / 1.414 * on_circle(angle), torch.ones(8, dtype=torch.float64), noise / 1.414)

    def draw(self, n: int) -> Tensor:
        return self.centres[torch.randint(8, (n,))] + self.noise * torch.randn(n, 2, dtype=torch.float64)


class Circles(Mixture):
    """Blurred concentric circles, all of the same weight.

    Arguments:
        radii: The radius of each.
        noise: The standard deviation of the blur.

    Example:
        >>> Circles().sample((3,)).shape
        torch.Size([3, 2])
    """

    def __init__(self, radii: tuple[float, ...] = (1.5, 3.0), noise: float = 0.24) -> None:
        check_positive("noise", noise)
        self.radii = torch.tensor(radii, dtype=torch.float64)
        count = math.ceil(2 * math.pi * max(radii) / (noise / 2))  # equally spaced is best on a closed curve
        angle = torch.arange(count, dtype=torch.float64) * (2 * math.pi / count)
        centres = (self.radii[:, None, None] * on_circle(angle)).reshape(-1, 2)
        super().__init__(centres, torch.ones(len(centres), dtype=torch.float64), noise)

    def draw(self, n: int) -> Tensor:
        radius = self.radii[torch.randint(len(self.radii), (n, 1))]
        angle = 2 * math.pi * torch.rand(n, dtype=torch.float64)
        return radius * on_circle(angle) + self.noise * torch.randn(n, 2, dtype=torch.float64)


class Rings(Circles):
    """Four blurred rings.

    Example:
        >>> Rings().radii.tolist()
        [0.75, 1.5, 2.25, 3.0]
    """

    def __init__(self, noise: float = 0.08) -> None:
        super().__init__((0.75, 1.5, 2.25, 3.0), noise)


class Curve(Mixture):
    """A blurred curve, or its halves: `path` takes uniform numbers in (0, 1) to `(..., pieces, 2)`."""

    def __init__(self, length: float, noise: float) -> None:
        check_positive("noise", noise)
        count = math.ceil(length / (noise / 2))
        node, weight = self.nodes(count)
        places = self.path(node)
        super().__init__(places.reshape(-1, 2), weight.repeat_interleave(places.shape[-2]), noise)

    def path(self, u: Tensor) -> Tensor:
        """The places on each piece of the curve, `(n, pieces, 2)`, for u `(n,)`."""
        raise TypeError(f"{type(self).__name__} must define path")

    def nodes(self, count: int) -> tuple[Tensor, Tensor]:
        """Numbers in (0, 1), and weights with which a sum over them is the integral."""
        node, weight = np.polynomial.legendre.leggauss(count)
        return torch.from_numpy((1 + node) / 2), torch.from_numpy(weight / 2)

    def draw(self, n: int) -> Tensor:
        places = self.path(torch.rand(n, dtype=torch.float64))
        piece = torch.randint(places.shape[1], (n,))
        return places[torch.arange(n), piece] + self.noise * torch.randn(n, 2, dtype=torch.float64)


class Moons(Curve):
    """Two blurred half circles of radius 2 that reach into each other.

    Arguments:
        noise: The standard deviation of the blur.

    Example:
        >>> Moons().log_prob(torch.tensor([[-1.0, 1.6], [4.0, 4.0]])).exp() > 0.01
        tensor([ True, False])
    """

    def __init__(self, noise: float = 0.2) -> None:
        super().__init__(2 * math.pi, noise)

    def path(self, u: Tensor) -> Tensor:
        upper = 2 * on_circle(math.pi * u) + u.new_tensor([-1.0, -0.4])
        lower = -2 * on_circle(math.pi * u) + u.new_tensor([1.0, 0.6])
        return torch.stack([upper, lower], dim=1)


class SwissRoll(Curve):
    """A blurred spiral, denser at its centre.

    Arguments:
        noise: The standard deviation of the blur.

    Example:
        >>> SwissRoll().sample((3,)).shape
        torch.Size([3, 2])
    """

    def __init__(self, noise: float = 0.2) -> None:
        super().__init__(20.0, noise)

    def path(self, u: Tensor) -> Tensor:
        t = 1.5 * math.pi * (1 + 2 * u)
        return (t[:, None] * on_circle(t) / 5)[:, None]


class TwoSpirals(Curve):
    """Two blurred spirals around each other.

    Arguments:
        noise: The standard deviation of the blur.

    Example:
        >>> TwoSpirals().sample((3,)).shape
        torch.Size([3, 2])
    """

    def __init__(self, noise: float = 0.1) -> None:
        super().__init__(20.0, noise)

    def path(self, u: Tensor) -> Tensor:
        t = 3 * math.pi * u.sqrt()
        arm = t[:, None] * on_circle(math.pi - t) / 3
        return torch.stack([arm, -arm], dim=1)

    def nodes(self, count: int) -> tuple[Tensor, Tensor]:
        node, weight = super().nodes(count)
        return node.square(), 2 * node * weight  # the root of u is smooth in the root of u


class Pinwheel(Toy):
    """Five blurred blades, bent by a rotation that grows with the distance from the centre.

    Example:
        >>> Pinwheel().sample((3,)).shape
        torch.Size([3, 2])
    """

    blades, along, across, rate, size = 5, 0.3, 0.1, 0.25, 2.0
    extent = 5.5
    finest = 0.08
    terms = 5 * 64

    def draw(self, n: int) -> Tensor:
        blade = torch.randint(self.blades, (n,))
        f, g = 1 + self.along * torch.randn(n, dtype=torch.float64), self.across * torch.randn(n, dtype=torch.float64)
        angle = 2 * math.pi / self.blades * blade + self.rate * f.exp()
        return self.size * rotated(torch.stack([f, g], -1), angle)

    def log_density(self, points: Tensor) -> Tensor:
        # A point (f, g) of a straight blade is turned by an angle that depends on f. To undo that for a guess of f
        # gives another f; where the two agree is a point of the blade that goes here. Mostly there is one per blade.
        guess = 1 + self.along * torch.linspace(-6, 6, self.terms // self.blades, dtype=torch.float64)
        turn = 2 * math.pi / self.blades * torch.arange(self.blades, dtype=torch.float64)
        straight = (points / self.size)[:, None, None]
        turn, guess = turn[:, None].expand(-1, len(guess)), guess.expand(self.blades, -1)
        excess = self._undone(straight, guess, turn)[0] - guess
        point, blade, place = (excess[..., 1:].sign() != excess[..., :-1].sign()).nonzero(as_tuple=True)
        straight, turn = straight[point, 0, 0], turn[blade, 0]
        low, high = guess[0, place], guess[0, place + 1]
        sign = excess[point, blade, place].sign()
        for _ in range(60):
            middle = (low + high) / 2
            left = (self._undone(straight, middle, turn)[0] - middle).sign() == sign
            low, high = torch.where(left, middle, low), torch.where(left, high, middle)
        f, g = self._undone(straight, low, turn)
        log_p = -((f - 1) / self.along).square() / 2 - (g / self.across).square() / 2
        jacobian = (1 - self.rate * f.exp() * g).abs() * self.size**2
        p = log_p.exp() / (2 * math.pi * self.along * self.across * self.blades * jacobian)
        return points.new_zeros(len(points)).index_add(0, point, p).log()

    def _undone(self, points: Tensor, f: Tensor, turn: Tensor) -> tuple[Tensor, Tensor]:
        straight = rotated(points, -turn - self.rate * f.exp())
        return straight[..., 0], straight[..., 1]


class Checkerboard(Toy):
    """Uniform on eight of sixteen squares of side 2.

    Example:
        >>> toy = Checkerboard()
        >>> toy.log_prob(torch.tensor([[1.0, 1.0], [-1.0, 1.0]]))
        tensor([-3.4657,    -inf], dtype=torch.float64)
        >>> bool(toy.entropy() == math.log(32))
        True
    """

    extent = 4.0

    def draw(self, n: int) -> Tensor:
        u = 4 * torch.rand(n, dtype=torch.float64) - 2
        v = torch.rand(n, dtype=torch.float64) - 2 * torch.randint(2, (n,)) + u.floor() % 2
        return 2 * torch.stack([u, v], dim=-1)

    def sample(self, sample_shape: Size | list[int] | tuple[int, ...] = Size()) -> Tensor:  # noqa: B008
        """Points, `(*sample_shape, 2)`, of which rounding takes none over the edge of its square."""
        exact = self.draw(Size(sample_shape).numel())
        x = exact.to(torch.get_default_dtype())
        over = (x.double() / 2).floor() > (exact / 2).floor()
        x = torch.where(over, x.nextafter(x.new_tensor(-math.inf)), x)
        return x.reshape(*sample_shape, 2)

    def log_density(self, points: Tensor) -> Tensor:
        inside = ((points >= -4) & (points < 4)).all(-1)
        dark = (points / 2).floor().sum(-1) % 2 == 0
        return ((inside & dark).double() / 32).log()

    @property
    def _entropy(self) -> float:
        return math.log(32)


DISTRIBUTIONS: dict[str, type[Toy]] = {
    "eight-gaussians": EightGaussians,
    "checkerboard": Checkerboard,
    "rings": Rings,
    "moons": Moons,
    "circles": Circles,
    "swiss-roll": SwissRoll,
    "two-spirals": TwoSpirals,
    "pinwheel": Pinwheel,
}
"""Each by its name."""


def on_circle(angle: Tensor) -> Tensor:
    """Points of the unit circle, `(..., 2)`."""
    return torch.stack([angle.cos(), angle.sin()], dim=-1)


def rotated(points: Tensor, angle: Tensor) -> Tensor:
    """Points `(..., 2)`, each turned by its angle `(...)`."""
    x, y = points[..., 0], points[..., 1]
    cos, sin = angle.cos(), angle.sin()
    return torch.stack([cos * x - sin * y, sin * x + cos * y], dim=-1)
