"""Variational dequantisation of images: a learned distribution of points in the cells of pixels."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import relu

from elflow._checks import check_count
from elflow.flows.multiscale import MultiscaleELF, Shape
from elflow.kernels import widen
from elflow.nn import InitializesParts

__all__ = ["DEQUANTIZATIONS", "ImageNoise", "check_noise_sizes"]

DEQUANTIZATIONS = ["uniform", "variational"]
N_CHANNELS = 32
"""Number of channels of the features of an image that the noise depends on."""
N_BLOCKS = 4
"""Number of residual blocks that compute these features."""
N_TRANSFORMS = 2
"""Default number of transformations of the noise."""
SIZES = ["transforms", "units", "channels", "blocks"]
"""The sizes of the flow of the noise."""


class ImageNoise(InitializesParts):
    """Flow from normal noise to a point in the cell of each pixel, conditioned on the image.

    Reference:
        Flow++: Improving Flow-Based Generative Models with Variational Dequantization (Ho et al., 2019)

    Arguments:
        shape: Channels, height and width.
        levels: The number of values that a pixel can have.
        transforms: The number of transformations.
        sizes: Further arguments of `MultiscaleELF`: the sizes of the hypernetworks, `bound`, `activation` and
            `parametrization`.

    Example:
        >>> noise = ImageNoise((1, 4, 4), levels=256, units=4, channels=4, blocks=1)
        >>> u, complement, log_q = noise(torch.randint(256, (5, 16)))
        >>> u.shape, log_q.shape, torch.allclose(u + complement, torch.ones(5, 16).double())
        (torch.Size([5, 16]), torch.Size([5]), True)
    """

    def __init__(self, shape: Shape, levels: int, transforms: int = N_TRANSFORMS, **sizes: Any) -> None:
        super().__init__()
        self.shape = shape
        self.levels = levels
        self.features = nn.Sequential(
            nn.Conv2d(shape[0], N_CHANNELS, 3, padding=1), *[_ResidualBlock(N_CHANNELS) for _ in range(N_BLOCKS)]
        )
        self.flow = MultiscaleELF(shape, N_CHANNELS, scales=1, transforms=transforms, image=True, **sizes)

    def forward(self, levels: Tensor, noise: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """Draw a point in each cell.

        Arguments:
            levels: Levels of images, `(N, features)`.
            noise: Normal random numbers of the same shape; None draws new ones.

        Returns:
            Positions u in (0, 1) and 1 - u, `(N, features)` each, and the log-density of each image's u, `(N,)`.
        """
        context = self._compute_features(levels)
        normal = torch.randn(levels.shape, dtype=context.dtype, device=levels.device) if noise is None else noise
        v, ladj = self.flow.transform(context).call_and_ladj(normal)
        # u = ndtr(v): du/dv is the normal density of v, whose constant cancels that of the density of `normal`.
        log_q = ((v**2 - normal**2) / 2).sum(-1) - ladj
        return torch.special.ndtr(widen(v)), torch.special.ndtr(widen(-v)), log_q

    def initialize_parts(self, levels: Tensor, c: None = None) -> None:
        """Initialise the flow from levels of images, `(N, features)`."""
        context = self._compute_features(levels)
        self.flow.initialize(torch.randn(levels.shape, dtype=context.dtype, device=levels.device), context)

    def _compute_features(self, levels: Tensor) -> Tensor:
        """Features of images as context of the flow, `(N, height * width * N_CHANNELS)`."""
        channels, height, width = self.shape
        scaled = levels.to(self.flow.dtype) * (2 / (self.levels - 1)) - 1
        images = scaled.reshape(-1, height, width, channels).permute(0, 3, 1, 2)
        return self.features(images).permute(0, 2, 3, 1).flatten(1)


def check_noise_sizes(sizes: object) -> dict[str, int]:
    """Check sizes of the flow of the noise that differ from those of the images, by name.

    Example:
        >>> check_noise_sizes({"channels": 192, "blocks": 5})
        {'channels': 192, 'blocks': 5}
    """
    if not isinstance(sizes, dict) or not set(sizes) <= set(SIZES):
        raise ValueError(f"noise_sizes must be a dictionary with some of {SIZES}, got {sizes!r}")
    return {name: check_count(f"{name} of noise_sizes", value) for name, value in sizes.items()}


class _ResidualBlock(nn.Module):
    """Residual block of two convolutions."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels, channels, 3, padding=1)
        self.second = nn.Conv2d(channels, channels, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.second(relu(self.first(relu(x))))
