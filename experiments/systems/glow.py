"""The Glow of normflows, as an image model for `elflow.training.fit`.

normflows is optional: pip install 'elflow[experiments]' in a checkout.
"""

from __future__ import annotations

import math
import warnings
from typing import Any

import torch
from torch import Tensor, nn

from experiments.systems.normflows_flows import normflows

__all__ = ["Glow", "build_glow"]

ALPHA = 1e-6
"""Distance of the logit's argument from 0 and 1."""
CHUNK = 256
"""Number of images in a block, for limited memory and for the initialisation of ActNorm."""


class Pixels(nn.Module):
    """Map between dequantised pixels and the input of Glow, with log-determinants, for normflows' `MultiscaleFlow`.

    Arguments:
        levels: The number of values of a pixel: dequantised pixels lie in [0, levels].
        zeros: The share of zeros among the pixels. They are mapped to that share of (0, 1) before the logit, by the CDF
            of a mixture of two uniform densities. Glow's own map to (-1/2, 1/2) is far worse on MNIST.
    """

    def __init__(self, levels: int, zeros: float) -> None:
        super().__init__()
        self.logit = normflows().transforms.Logit(ALPHA)
        self.zeros = zeros
        self.rest = (1 - zeros) / (levels - 1)

    def inverse(self, y: Tensor) -> tuple[Tensor, Tensor]:
        """From pixels to the input of Glow."""
        u = self.zeros * y.clamp(max=1) + self.rest * (y - 1).clamp(min=0)
        below = (y < 1).flatten(1).to(y.dtype)
        ladj = (below * math.log(self.zeros) + (1 - below) * math.log(self.rest)).sum(1)
        z, more = self.logit.inverse(u)
        return z, ladj + more

    def forward(self, z: Tensor) -> tuple[Tensor, Tensor]:
        """From the input of Glow to pixels."""
        u = self.logit(z)[0]
        y = torch.where(u < self.zeros, u / self.zeros, 1 + (u - self.zeros) / self.rest)
        return y, -self.inverse(y)[1]


class Glow(nn.Module):
    """A density over images of integers: normflows' `MultiscaleFlow` of their pixels."""

    def __init__(self, flow: Any, shape: tuple[int, int, int], levels: int) -> None:
        super().__init__()
        self.flow = flow
        self.shape = tuple(shape)
        self.levels = levels

    def forward(self, c: None = None) -> Glow:
        if c is not None:
            raise TypeError(f"c must be None, because this Glow has no context, got {type(c).__name__}")
        return self

    @torch.no_grad()
    def initialize(self, x: Tensor, c: None = None) -> None:
        """Initialise each ActNorm with 256 images, unless it is initialised."""
        self.log_prob(x[torch.randperm(len(x))[:CHUNK]])

    def log_prob(self, x: Tensor) -> Tensor:
        """Log-density in nats with one noise sample, `(N,)`: a lower bound on the log-probability, in expectation."""
        y = x.to(next(self.parameters()).dtype)
        y = y + torch.rand_like(y)
        return torch.cat([self.flow.log_prob(some, None) for some in y.split(CHUNK)])

    @torch.no_grad()
    def bits_per_dim(self, x: Tensor) -> Tensor:
        """Bits per dimension, `(N,)`: an upper bound on average."""
        return -self.log_prob(x) / (math.prod(self.shape) * math.log(2))

    @torch.no_grad()
    def sample(self, n: int) -> Tensor:
        """Draw samples `(n, C, H, W)`."""
        y, _ = self.flow.sample(n)
        return y.floor().clamp(0, self.levels - 1).to(torch.uint8)


def build_glow(
    shape: tuple[int, int, int],
    levels: int,
    scales: int,
    steps: int,
    hidden_channels: int,
    zeros: float,
) -> Glow:
    """A Glow of normflows: at each scale a squeeze and `steps` steps, then half of the channels are split off.

    Arguments:
        shape: Channels, height and width.
        levels: The number of values of a pixel, 0 to `levels - 1`.
        scales: The number of scales; fewer if height or width cannot be halved as often.
        steps: The number of steps at each scale: ActNorm, invertible 1x1 convolution and affine coupling.
        hidden_channels: The number of channels in the network of a coupling.
        zeros: The share of zeros among the pixels: see `Pixels`.

    Example:
        >>> glow = build_glow((1, 28, 28), levels=256, scales=3, steps=2, hidden_channels=8, zeros=0.8)
        >>> x = torch.randint(256, (5, 1, 28, 28), dtype=torch.uint8)
        >>> glow().log_prob(x).shape, glow.sample(2).shape
        (torch.Size([5]), torch.Size([2, 1, 28, 28]))
    """
    if not 0 < zeros < 1:
        raise ValueError(f"zeros must be in (0, 1), got {zeros}")
    channels, height, width = shape
    possible = int(math.log2(math.gcd(height, width, 2**scales)))
    if possible == 0:
        raise ValueError(f"height and width must be even and scales at least 1, got {shape} and {scales}")
    nf = normflows()
    bases, flows = [], []
    for scale in range(possible, 0, -1):  # normflows starts at the noise
        inner = channels * 2 ** (scale + 1)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="torch.lu is deprecated")  # normflows 1.7.3 calls it
            # Scales by exp trained faster here than Glow's own, by a sigmoid.
            blocks = [nf.flows.GlowBlock(inner, hidden_channels, scale_map="exp") for _ in range(steps)]
        flows.append([*blocks, nf.flows.Squeeze()])
        done = inner if scale == possible else inner // 2
        bases.append(nf.distributions.DiagGaussian((done, height // 2**scale, width // 2**scale)))
    merges = [nf.flows.Merge() for _ in range(possible - 1)]
    pixels = Pixels(levels, zeros)
    flow = nf.MultiscaleFlow(bases, flows, merges, pixels, class_cond=False)
    return Glow(flow.to(memory_format=torch.channels_last), shape, levels)  # a third faster on MNIST
