"""Two-dimensional toy distributions with exact log-densities and known entropies.

They are torch distributions. The expected log-density of a model, on samples of one of them, is at most minus the
entropy. The gap is the Kullback-Leibler divergence of the model from the distribution, and 0 for a perfect model.
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

MAX_TERMS = 1 << 22
"""Maximum number of terms of log-densities in memory at a time."""


class Toy(Distribution):
    """Base class of distributions on the plane.

    A subclass defines `draw`, `log_density`, `extent` and `resolution`, and `terms` if its log-density needs much
    memory. Samples, log-densities of any shape and the entropy follow.
    """

    arg_constraints: dict[str, constraints.Constraint] = {}  # noqa: RUF012
    support = constraints.real_vector
    extent = 5.0
    """Half the side of a square around zero that contains all but a negligible part of the probability."""
    resolution = 0.05
    """Smallest length over which the density changes."""
    terms = 1
    """Number of terms that `log_density` computes for each point."""

    def __init__(self) -> None:
        super().__init__(event_shape=Size([2]), validate_args=False)

    def sample(self, sample_shape: Size | list[int] | tuple[int, ...] = Size()) -> Tensor:  # noqa: B008
        """Draw points, `(*sample_shape, 2)`, in the default dtype and with torch's global generator."""
        shape = Size(sample_shape)
        return self.draw(shape.numel()).to(torch.get_default_dtype()).reshape(*shape, 2)

    def log_prob(self, value: Tensor) -> Tensor:
        """Exact log-density of points `(..., 2)`, `(...)`, in nats and float64, without gradients."""
        if value.shape[-1:] != (2,):
            raise ValueError(f"value must have the shape (..., 2), got {tuple(value.shape)}")
        points = value.detach().double().reshape(-1, 2)
        blocks = [self.log_density(block) for block in points.split(max(1, MAX_TERMS // self.terms))]
        return torch.cat(blocks).reshape(value.shape[:-1]) if blocks else points.new_zeros(value.shape[:-1])

    def entropy(self) -> Tensor:
        """Entropy in nats: minus the expected log-density of a perfect model."""
        return torch.tensor(self._entropy, dtype=torch.float64)

    def draw(self, n: int) -> Tensor:
        """Draw n points, `(n, 2)`, of float64."""
        raise TypeError(f"{type(self).__name__} must define draw")

    def log_density(self, points: Tensor) -> Tensor:
        """Log-density at points `(n, 2)` of float64, `(n,)`."""
        raise TypeError(f"{type(self).__name__} must define log_density")

    @cached_property
    def _entropy(self) -> float:
        # The trapezoidal rule converges faster than any power of the spacing for a smooth density.
        count = math.ceil(2 * self.extent / (self.resolution / 2))
        axis = torch.linspace(-self.extent, self.extent, count, dtype=torch.float64)
        p = self.log_prob(torch.cartesian_prod(axis, axis)).exp()
        return float(-torch.xlogy(p, p).sum() * (axis[1] - axis[0]) ** 2)


class Mixture(Toy):
    """Mixture of Gaussians of one width; with many centres along a curve, the curve with Gaussian noise.

    Where the centres are nodes of a quadrature rule and closer than the width, the sum over them equals the integral
    along the curve up to rounding.

    Arguments:
        centres: Means of the Gaussians, `(K, 2)`.
        weights: Weights of the Gaussians, `(K,)`, which are normalised.
        noise: Standard deviation of the Gaussians.
    """

    def __init__(self, centres: Tensor, weights: Tensor, noise: float) -> None:
        super().__init__()
        self.centres = centres
        self.weights = weights / weights.sum()
        self.noise = noise
        self.terms = len(centres)
        self.resolution = noise
        self.extent = float(centres.abs().max()) + 8 * noise

    def log_density(self, points: Tensor) -> Tensor:
        # Distances without matrix products, which would cancel digits of small distances between large coordinates.
        squares = torch.cdist(points, self.centres, compute_mode="donot_use_mm_for_euclid_dist").square()
        logs = squares / (-2 * self.noise**2) + self.weights.log()
        return logs.logsumexp(-1) - math.log(2 * math.pi * self.noise**2)


class EightGaussians(Mixture):
    """Eight Gaussians on a circle of radius 4, with all coordinates divided by 1.414.

    Arguments:
        noise: Standard deviation of each Gaussian before the division.

    Example:
        >>> toy = EightGaussians()
        >>> x = toy.sample((1000,))
        >>> round(float(toy.entropy()), 4)
        2.8319
    """

    def __init__(self, noise: float = 0.5) -> None:
        check_positive("noise", noise)
        angle = torch.arange(8, dtype=torch.float64) * math.pi / 4
        super().__init__(4 / 1.414 * unit_vectors(angle), torch.ones(8, dtype=torch.float64), noise / 1.414)

    def draw(self, n: int) -> Tensor:
        return self.centres[torch.randint(8, (n,))] + self.noise * torch.randn(n, 2, dtype=torch.float64)


class Circles(Mixture):
    """Concentric circles of equal weight with Gaussian noise.

    Arguments:
        radii: Radii of the circles.
        noise: Standard deviation of the noise.

    Example:
        >>> Circles().sample((3,)).shape
        torch.Size([3, 2])
    """

    def __init__(self, radii: tuple[float, ...] = (1.5, 3.0), noise: float = 0.24) -> None:
        check_positive("noise", noise)
        self.radii = torch.tensor(radii, dtype=torch.float64)
        # On a closed curve, equally spaced nodes are the best quadrature rule.
        count = math.ceil(2 * math.pi * max(radii) / (noise / 2))
        angle = torch.arange(count, dtype=torch.float64) * (2 * math.pi / count)
        centres = (self.radii[:, None, None] * unit_vectors(angle)).reshape(-1, 2)
        super().__init__(centres, torch.ones(len(centres), dtype=torch.float64), noise)

    def draw(self, n: int) -> Tensor:
        radius = self.radii[torch.randint(len(self.radii), (n, 1))]
        angle = 2 * math.pi * torch.rand(n, dtype=torch.float64)
        return radius * unit_vectors(angle) + self.noise * torch.randn(n, 2, dtype=torch.float64)


class Rings(Circles):
    """Four concentric circles with little noise.

    Arguments:
        noise: Standard deviation of the noise.

    Example:
        >>> Rings().radii.tolist()
        [0.75, 1.5, 2.25, 3.0]
    """

    def __init__(self, noise: float = 0.08) -> None:
        super().__init__((0.75, 1.5, 2.25, 3.0), noise)


class Curve(Mixture):
    """Curve of one or several pieces with Gaussian noise.

    Arguments:
        length: Approximate length of the longest piece, which determines the number of quadrature nodes.
        noise: Standard deviation of the noise.
    """

    def __init__(self, length: float, noise: float) -> None:
        check_positive("noise", noise)
        count = math.ceil(length / (noise / 2))
        node, weight = self.quadrature(count)
        centres = self.path(node)
        super().__init__(centres.reshape(-1, 2), weight.repeat_interleave(centres.shape[-2]), noise)

    def path(self, u: Tensor) -> Tensor:
        """Points on each piece of the curve, `(n, pieces, 2)`, for u in (0, 1), `(n,)`, which is uniform in `draw`."""
        raise TypeError(f"{type(self).__name__} must define path")

    def quadrature(self, count: int) -> tuple[Tensor, Tensor]:
        """Nodes in (0, 1) and weights of a quadrature rule, `(count,)` each."""
        node, weight = np.polynomial.legendre.leggauss(count)
        return torch.from_numpy((1 + node) / 2), torch.from_numpy(weight / 2)

    def draw(self, n: int) -> Tensor:
        points = self.path(torch.rand(n, dtype=torch.float64))
        piece = torch.randint(points.shape[1], (n,))
        return points[torch.arange(n), piece] + self.noise * torch.randn(n, 2, dtype=torch.float64)


class Moons(Curve):
    """Two interleaved half circles of radius 2 with Gaussian noise.

    Arguments:
        noise: Standard deviation of the noise.

    Example:
        >>> Moons().log_prob(torch.tensor([[-1.0, 1.6], [4.0, 4.0]])).exp() > 0.01
        tensor([ True, False])
    """

    def __init__(self, noise: float = 0.2) -> None:
        super().__init__(2 * math.pi, noise)

    def path(self, u: Tensor) -> Tensor:
        upper = 2 * unit_vectors(math.pi * u) + u.new_tensor([-1.0, -0.4])
        lower = -2 * unit_vectors(math.pi * u) + u.new_tensor([1.0, 0.6])
        return torch.stack([upper, lower], dim=1)


class SwissRoll(Curve):
    """Spiral with Gaussian noise, denser at its centre.

    Arguments:
        noise: Standard deviation of the noise.

    Example:
        >>> SwissRoll().sample((3,)).shape
        torch.Size([3, 2])
    """

    def __init__(self, noise: float = 0.2) -> None:
        super().__init__(20.0, noise)

    def path(self, u: Tensor) -> Tensor:
        t = 1.5 * math.pi * (1 + 2 * u)
        return (t[:, None] * unit_vectors(t) / 5)[:, None]


class TwoSpirals(Curve):
    """Two interleaved spirals with Gaussian noise.

    Arguments:
        noise: Standard deviation of the noise.

    Example:
        >>> TwoSpirals().sample((3,)).shape
        torch.Size([3, 2])
    """

    def __init__(self, noise: float = 0.1) -> None:
        super().__init__(20.0, noise)

    def path(self, u: Tensor) -> Tensor:
        t = 3 * math.pi * u.sqrt()
        arm = t[:, None] * unit_vectors(math.pi - t) / 3
        return torch.stack([arm, -arm], dim=1)

    def quadrature(self, count: int) -> tuple[Tensor, Tensor]:
        # The path is smooth in the square root of u, not in u: substitute u = v^2.
        node, weight = super().quadrature(count)
        return node.square(), 2 * node * weight


class Pinwheel(Toy):
    """Five Gaussian blades, bent by a rotation that grows with the distance from the centre.

    Example:
        >>> Pinwheel().sample((3,)).shape
        torch.Size([3, 2])
    """

    blades, along, across, rate, size = 5, 0.3, 0.1, 0.25, 2.0
    extent = 5.5
    resolution = 0.08
    terms = 5 * 64

    def draw(self, n: int) -> Tensor:
        blade = torch.randint(self.blades, (n,))
        f, g = 1 + self.along * torch.randn(n, dtype=torch.float64), self.across * torch.randn(n, dtype=torch.float64)
        angle = 2 * math.pi / self.blades * blade + self.rate * f.exp()
        return self.size * rotate(torch.stack([f, g], -1), angle)

    def log_density(self, points: Tensor) -> Tensor:
        # A point (f, g) of a straight blade is rotated by an angle that depends on f. Undoing the rotation for a guess
        # of f gives another f: a root of the difference is a preimage. Brackets of all roots are found on a grid of
        # guesses, then bisected. Most blades have one root.
        guess = 1 + self.along * torch.linspace(-6, 6, self.terms // self.blades, dtype=torch.float64)
        turn = 2 * math.pi / self.blades * torch.arange(self.blades, dtype=torch.float64)
        straight = (points / self.size)[:, None, None]
        turn, guess = turn[:, None].expand(-1, len(guess)), guess.expand(self.blades, -1)
        excess = self._unbend(straight, guess, turn)[0] - guess
        point, blade, cell = (excess[..., 1:].sign() != excess[..., :-1].sign()).nonzero(as_tuple=True)
        straight, turn = straight[point, 0, 0], turn[blade, 0]
        low, high = guess[0, cell], guess[0, cell + 1]
        sign = excess[point, blade, cell].sign()
        for _ in range(60):
            middle = (low + high) / 2
            is_right = (self._unbend(straight, middle, turn)[0] - middle).sign() == sign
            low, high = torch.where(is_right, middle, low), torch.where(is_right, high, middle)
        f, g = self._unbend(straight, low, turn)
        log_p = -((f - 1) / self.along).square() / 2 - (g / self.across).square() / 2
        jacobian = (1 - self.rate * f.exp() * g).abs() * self.size**2
        p = log_p.exp() / (2 * math.pi * self.along * self.across * self.blades * jacobian)
        return points.new_zeros(len(points)).index_add(0, point, p).log()

    def _unbend(self, points: Tensor, f: Tensor, turn: Tensor) -> tuple[Tensor, Tensor]:
        """Coordinates (f, g) on the straight blade of points that were rotated by `turn` and the angle of f."""
        straight = rotate(points, -turn - self.rate * f.exp())
        return straight[..., 0], straight[..., 1]


class Checkerboard(Toy):
    """Uniform distribution on eight of sixteen squares of side 2.

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
        """Draw points, `(*sample_shape, 2)`, in the default dtype and with torch's global generator."""
        exact = self.draw(Size(sample_shape).numel())
        x = exact.to(torch.get_default_dtype())
        # Rounding up may move a point to the next square, where the density is 0.
        is_outside = (x.double() / 2).floor() > (exact / 2).floor()
        x = torch.where(is_outside, x.nextafter(x.new_tensor(-math.inf)), x)
        return x.reshape(*sample_shape, 2)

    def log_density(self, points: Tensor) -> Tensor:
        is_inside = ((points >= -4) & (points < 4)).all(-1)
        is_dark = (points / 2).floor().sum(-1) % 2 == 0
        return ((is_inside & is_dark).double() / 32).log()

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
"""Classes of distributions by name."""


def unit_vectors(angle: Tensor) -> Tensor:
    """Unit vectors at angles `(...)`, `(..., 2)`."""
    return torch.stack([angle.cos(), angle.sin()], dim=-1)


def rotate(points: Tensor, angle: Tensor) -> Tensor:
    """Rotate points `(..., 2)` by angles `(...)`."""
    x, y = points[..., 0], points[..., 1]
    cos, sin = angle.cos(), angle.sin()
    return torch.stack([cos * x - sin * y, sin * x + cos * y], dim=-1)
