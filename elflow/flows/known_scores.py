"""Scores of fixed points, which a model file stores so that other machines can verify their computation."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from elflow.flows.elf import ELF
from elflow.flows.image import ImageELF
from elflow.kernels import NonFiniteError

__all__ = ["as_known_scores", "score_fixed_points", "spread_points", "spread_probabilities"]

N_POINTS = 4
"""Number of points."""
MARGIN = 0.02
"""Distance of probabilities from 0 and 1, so that points are not far out in the tails."""


def spread_probabilities(n: int, features: int, start: int = 0) -> Tensor:
    """Points of a sequence that fills the unit cube, `(n, features)`, in double precision, the same on every machine.

    Coordinate j of point i is the fractional part of (i + 1) (j + 1) times the golden ratio.

    Arguments:
        n: The number of points.
        features: The number of coordinates.
        start: The first coordinate of the sequence, for coordinates that differ from others.

    Example:
        >>> spread_probabilities(2, 2)
        tensor([[0.6133, 0.2466],
                [0.2466, 0.4733]], dtype=torch.float64)
    """
    i = torch.arange(1, n + 1, dtype=torch.double)[:, None]
    j = torch.arange(start + 1, start + features + 1, dtype=torch.double)
    return MARGIN + (1 - 2 * MARGIN) * (i * j * ((math.sqrt(5) - 1) / 2)).frac()


def spread_points(n: int, features: int, start: int = 0) -> Tensor:
    """Normal quantiles of `spread_probabilities`, `(n, features)`."""
    return torch.special.ndtri(spread_probabilities(n, features, start))


def score_fixed_points(flow: ELF | ImageELF) -> list[float | None]:
    """Log-densities of a few fixed points; None where they are not finite.

    Example:
        >>> len(score_fixed_points(ELF(features=3, context=2)))
        4
    """
    with torch.no_grad(), evaluating(flow):
        try:
            scores = _score_images(flow) if isinstance(flow, ImageELF) else _score_vectors(flow)
        except NonFiniteError:
            return [None] * N_POINTS
    return as_known_scores(scores.tolist())


def as_known_scores(scores: Iterable[float]) -> list[float | None]:
    """Scores for a file, with None where they are not finite."""
    return [score if math.isfinite(score) else None for score in scores]


def _score_vectors(flow: ELF) -> Tensor:
    x, c = spread_points(N_POINTS, flow.features), spread_points(N_POINTS, flow.context, flow.features)
    like = next(flow.parameters())
    return flow(c.to(like) if flow.context else None).log_prob(x.to(like))


def _score_images(flow: ImageELF) -> Tensor:
    features = math.prod(flow.shape)
    u = spread_probabilities(N_POINTS, 2 * features)
    images = (u[:, :features] * flow.levels).long().reshape(-1, *flow.shape)
    noise = u[:, features:] if flow.noise is None else torch.special.ndtri(u[:, features:]).to(flow.dtype)
    if flow.classes:
        context: Tensor | None = torch.arange(N_POINTS) % flow.classes
    else:
        context = spread_points(N_POINTS, flow.context).to(flow.dtype) if flow.context else None
    given = None if context is None else context.to(flow.device)
    return flow.log_prob(images.to(flow.device), given, noise.to(flow.device))


@contextmanager
def evaluating(module: nn.Module) -> Iterator[None]:
    """Put a module into evaluation mode inside the block; scores in training mode would initialise its layers."""
    modes = [(part, part.training) for part in module.modules()]
    module.eval()
    try:
        yield
    finally:
        for part, mode in modes:
            part.training = mode
