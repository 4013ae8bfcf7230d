"""Where in its cell a pixel lies: the noise that makes real numbers of whole ones, and learns to do so well."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import relu

from elflow.flows.multiscale import MultiscaleELF, Shape
from elflow.nn import InitializesParts

__all__ = ["DEQUANTIZATIONS", "ImageNoise"]

DEQUANTIZATIONS = ["uniform", "variational"]
FEATURES = 32
"""Channels of what the noise sees of an image."""
BLOCKS = 4
TRANSFORMS = 2


class ImageNoise(InitializesParts):
    """A flow from normal noise to a point in each pixel's cell, given the image.

    This is variational dequantisation (Ho et al., 2019).

    Arguments:
        shape: Channels, height and width.
        levels: How many values a pixel can have.
        sizes: What else the flow's hypernetworks are made of: see `MultiscaleELF`.

    Example:
        >>> noise = ImageNoise((1, 4, 4), levels=256, units=4, channels=4, blocks=1)
        >>> u, rest, log_q = noise(torch.randint(256, (5, 16)))
        >>> u.shape, log_q.shape, torch.allclose(u + rest, torch.ones(5, 16).double())
        (torch.Size([5, 16]), torch.Size([5]), True)
    """

    def __init__(self, shape: Shape, levels: int, **sizes: Any) -> None:
        super().__init__()
        self.shape = shape
        self.levels = levels
        self.features = nn.Sequential(
            nn.Conv2d(shape[0], FEATURES, 3, padding=1), *[_Residual(FEATURES) for _ in range(BLOCKS)]
        )
        self.flow = MultiscaleELF(shape, FEATURES, scales=1, transforms=TRANSFORMS, image=True, **sizes)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Points u in (0, 1) and 1 - u for levels `(N, features)`, and the log-density of each image's points."""
        seen = self._seen(x)
        normal = torch.randn(x.shape, dtype=seen.dtype, device=x.device)
        v, ladj = self.flow.transform(seen).call_and_ladj(normal)
        # du/dv is the normal density of v, so that both densities lose their constants.
        log_q = ((v**2 - normal**2) / 2).sum(-1) - ladj
        return torch.special.ndtr(v.double()), torch.special.ndtr(-v.double()), log_q

    def initialize_parts(self, x: Tensor, c: None = None) -> None:
        """Sets the parts of the flow."""
        seen = self._seen(x)
        self.flow.initialize(torch.randn(x.shape, dtype=seen.dtype, device=x.device), seen)

    def _seen(self, x: Tensor) -> Tensor:
        """What the flow sees of images, `(N, height * width * FEATURES)`."""
        channels, height, width = self.shape
        scaled = x.to(self.flow.dtype) * (2 / (self.levels - 1)) - 1
        images = scaled.reshape(-1, height, width, channels).permute(0, 3, 1, 2)
        return self.features(images).permute(0, 2, 3, 1).flatten(1)


class _Residual(nn.Module):
    """Two convolutions, added to what they take."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels, channels, 3, padding=1)
        self.second = nn.Conv2d(channels, channels, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.second(relu(self.first(relu(x))))
