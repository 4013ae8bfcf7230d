"""ImageELF: the likelihood of images, and images from it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any, Self

import torch
from torch import Size, Tensor
from torch.distributions import Distribution

from elflow._checks import check_bound, check_choice, check_count, check_counts, check_rows
from elflow.activations import FELU, PiecewiseQuadratic, check_activation
from elflow.flows._image_input import check_images, condition
from elflow.flows._progress import settling
from elflow.flows.levels import Levels
from elflow.flows.multiscale import ConvolutionalELFTransform, MultiscaleELF
from elflow.flows.noise import DEQUANTIZATIONS, ImageNoise
from elflow.nn import InitializesParts
from elflow.transforms import invert, warn_not_converged

__all__ = ["ImageELF"]

MAX_SCALES = 32
"""Maximum number of scales of a model in a file."""
START = 512
"""How many images set the ActNorms."""
AT_ONCE = 2**18
"""How many numbers are scored at a time where no gradients are needed."""


class ImageELF(InitializesParts):
    """An exact-Lipschitz flow over images of whole numbers: the paper's image model.

    A pixel's level is a cell of (0, 1), in which a point is drawn; its logit is what the flow sees. What `log_prob`
    says of such a point is, on average, a lower bound of the image's log-probability.

    The first batch whose log-probability is asked for in training mode sets the ActNorms, and the widths of the cells.

    Reference:
        ELF: Exact-Lipschitz Based Universal Density Approximator Flow (Gopal, 2021)

    Arguments:
        shape: Channels, height and width.
        levels: How many values a pixel can have: 0 to `levels - 1`.
        scales: The number of scales; height and width must be divisible by 2 to the power of `scales - 1`.
        transforms: The number of autoregressive transformations on each scale.
        units: The units of each one-dimensional network.
        channels: The width of the hypernetworks.
        blocks: The residual blocks of each hypernetwork.
        dequantization: How points are drawn: `"uniform"`, or `"variational"` from a distribution that is learned.
        warp: How wide cells are. `"none"`: all the same. `"zeros"`: that of level 0 as wide as its share of all pixels,
            the others the same, as in the paper for MNIST. `"histogram"`: each as wide as its level's share.
        classes: The number of classes, if images are conditioned on theirs.
        context: The number of context features, if images are conditioned on a vector.
        bound: The greatest Lipschitz constant of the one-dimensional networks, in (0, 1).
        activation: What their units compute.

    Example:
        >>> img = ImageELF((1, 8, 8), levels=17, scales=2, transforms=1, units=8, channels=8, blocks=1)
        >>> x = img.sample(5)
        >>> x.shape, x.dtype
        (torch.Size([5, 1, 8, 8]), torch.uint8)
        >>> img.log_prob(x).shape, img.bits_per_dim(x).shape
        (torch.Size([5]), torch.Size([5]))
    """

    def __init__(
        self,
        shape: Sequence[int],
        levels: int = 256,
        scales: int = 3,
        transforms: int = 4,
        units: int = 32,
        channels: int = 32,
        blocks: int = 3,
        dequantization: str = "uniform",
        warp: str = "none",
        classes: int = 0,
        context: int = 0,
        bound: float = 0.99,
        activation: PiecewiseQuadratic = FELU,
    ) -> None:
        super().__init__()
        check_bound(bound)
        check_activation(activation)
        check_choice("dequantization", dequantization, DEQUANTIZATIONS)
        sizes: dict[str, Any] = {
            "units": check_count("units", units),
            "channels": check_count("channels", channels),
            "blocks": check_count("blocks", blocks),
            "bound": float(bound),
            "activation": activation,
        }
        scales, transforms = check_count("scales", scales), check_count("transforms", transforms)
        levels = check_count("levels", levels, least=2)
        self.classes = classes = check_count("classes", classes, least=0)
        self.context = context = check_count("context", context, least=0)
        if classes and context:
            raise ValueError(f"classes and context cannot both be given, got classes={classes}, context={context}")
        self.cells = Levels(levels, warp)
        self.flow = MultiscaleELF(shape, classes or context, scales, transforms, **sizes)
        self.shape = self.flow.shape
        self.noise = ImageNoise(self.shape, levels, **sizes) if dequantization == "variational" else None
        self.config = {
            "shape": list(self.shape),
            "levels": levels,
            "scales": scales,
            "transforms": transforms,
            **sizes | {"activation": activation.to_dict()},
            "dequantization": dequantization,
            "warp": warp,
            "classes": classes,
            "context": context,
        }

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Self:
        """An untrained flow with the configuration of another one, `flow.config`."""
        return cls(**config | {"activation": PiecewiseQuadratic(**config["activation"])})

    @staticmethod
    def min_numbers(config: dict[str, Any]) -> int:
        """How many numbers a flow of this configuration stores at least, without building it."""
        names = "scales", "transforms", "units", "channels", "blocks"
        scales, transforms, units, channels, blocks = (check_count(name, config[name]) for name in names)
        if scales > MAX_SCALES:
            raise ValueError(f"scales must be at most {MAX_SCALES}, got {scales}")
        shape = check_counts("shape", config["shape"])
        context = sum(check_count(name, config[name], least=0) for name in ("classes", "context"))
        layer = blocks * channels * (5 * channels + context) + channels * units
        return 2 * math.prod(shape) + scales * transforms * layer

    @property
    def levels(self) -> int:
        """How many values a pixel can have."""
        return self.cells.levels

    @property
    def dtype(self) -> torch.dtype:
        """What the flow computes in."""
        return self.flow.dtype

    @property
    def device(self) -> torch.device:
        """Where the flow is."""
        return self.cells.share.device

    def forward(self, c: Any = None) -> ImageDistribution:
        """The distribution p(x | c).

        Arguments:
            c: Classes `(N,)` or one class, vectors `(N, context)` or one vector; None for a flow without either.
        """
        return ImageDistribution(self, c)

    def initialize_parts(self, x: Any, c: Any) -> None:
        """Sets the widths of cells, and the ActNorms.

        Arguments:
            x: Images, integers `(N, channels, height, width)`; the ActNorms see 512 of them.
            c: Their classes `(N,)` or vectors `(N, context)`; None for a flow without either.
        """
        levels = self._levels(x)
        condition = self._condition(c, len(levels))
        self.cells.initialize(levels)
        some = slice(None, None, max(1, len(levels) // START))  # from all over: the first may be of one class
        levels, condition = levels[some][:START], None if condition is None else condition[some][:START]
        if self.noise is not None:
            self.noise.initialize(levels)
        self.flow.initialize(self._dequantized(levels)[0], condition)

    def log_prob(self, x: Any, c: Any = None) -> Tensor:
        """A lower bound, on average, of the log-probability of each image, in nats.

        Arguments:
            x: Images, integers `(N, channels, height, width)`.
            c: Their classes `(N,)` or vectors `(N, context)`, or one for all; None for a flow without either.
        """
        levels = self._levels(x)
        if self.training and not self.initialized and len(levels):
            self.initialize(x, c)
        return self._bound(levels, self._condition(c, len(levels)))

    @torch.no_grad()
    def bits_per_dim(self, x: Any, c: Any = None, samples: int = 1) -> Tensor:
        """An upper bound, on average, of the bits that each image takes, for each of its numbers.

        Arguments:
            x: Images, integers `(N, channels, height, width)`.
            c: Their classes `(N,)` or vectors `(N, context)`, or one for all; None for a flow without either.
            samples: How many points of the cells each bound is from: the more, the tighter it is (importance weighting,
                Burda et al., 2016).

        Example:
            >>> img = ImageELF((1, 2, 2), levels=2, scales=1, transforms=1, units=4, channels=4, blocks=1)
            >>> img.bits_per_dim(torch.tensor([[[[0, 1], [1, 0]]]]), samples=100).shape
            torch.Size([1])
        """
        levels = self._levels(x)
        parts = self._parts(levels, self._condition(c, len(levels)), check_count("samples", samples))
        nats = torch.cat([self._average(*part, samples) for part in parts])
        return -nats / (self.flow.features * math.log(2))

    def sample(
        self,
        n: int,
        c: Any = None,
        method: str = "exact",
        tol: float | None = None,
        progress: bool = False,
        return_info: bool = False,
    ) -> Any:
        """New images.

        Arguments:
            n: How many.
            c: One class or vector for all of them, or classes `(n,)` or vectors `(n, context)`.
            method: How layers are inverted: see `elflow.transforms.METHODS`.
            tol: The residual at which an image has settled in a layer: see `elflow.transforms.invert`.
            progress: Whether to show a progress bar.
            return_info: Whether to return how it went as well.

        Returns:
            Images, uint8 `(n, channels, height, width)`; with `return_info` also an `InverseInfo`, whose `calls` are
            the evaluations of each layer's hypernetwork.
        """
        z = torch.randn(check_count("n", n, least=0), self.flow.features, dtype=self.dtype, device=self.device)
        return self.decode(z, c, method, tol, progress, return_info)

    @torch.no_grad()
    def encode(self, x: Any, c: Any = None) -> Tensor:
        """Images in latent space, `(N, features)`, each pixel from the middle of its cell."""
        levels = self._levels(x)
        middle = torch.full(levels.shape, 0.5, dtype=self.dtype, device=self.device)
        y, _ = self.cells.place(levels, middle, middle)
        return self.flow.transform(self._condition(c, len(levels)))(y)

    @torch.no_grad()
    def decode(
        self,
        z: Tensor,
        c: Any = None,
        method: str = "exact",
        tol: float | None = None,
        progress: bool = False,
        return_info: bool = False,
    ) -> Any:
        """Images from latent space `(N, features)`. For the arguments and what it returns see `sample`."""
        check_rows("z", z, self.flow.features, "feature", self.dtype)
        if z.ndim != 2:
            raise ValueError(f"z must have the shape (N, {self.flow.features}), got {tuple(z.shape)}")
        transform = self.flow.transform(self._condition(c, len(z)))
        layers = sum(isinstance(m, ConvolutionalELFTransform) for m in self.flow.modules())
        with settling("sampling", len(z) * layers) if progress else nullcontext() as settled:
            y, info = invert(transform, z, tol, method, settled)
        channels, height, width = self.shape
        images = self.cells.level(y).reshape(-1, height, width, channels).permute(0, 3, 1, 2).contiguous()
        if return_info:
            return images, info
        if not info.converged:
            warn_not_converged(info)
        return images

    def reconstruct(self, x: Any, c: Any = None) -> Tensor:
        """Images to latent space and back, uint8 `(N, channels, height, width)`: the same images, if all is well."""
        return self.decode(self.encode(x, c), c)

    def _levels(self, x: Any) -> Tensor:
        return check_images(x, self.shape, self.levels, self.device)

    def _condition(self, c: Any, n: int) -> Tensor | None:
        return condition(c, n, self.classes, self.context, self.dtype, self.device)

    def _bound(self, levels: Tensor, c: Tensor | None) -> Tensor:
        """A lower bound of the log-probability of each image from one point of its cells."""
        parts = [(levels, c)] if torch.is_grad_enabled() else self._parts(levels, c)
        bounds = []
        for part, context in parts:
            y, extra = self._dequantized(part)
            # Not flow(context): only `initialize` may set the ActNorms, together with the cells.
            bounds.append(self.flow.distribution(context).log_prob(y) + extra)
        return torch.cat(bounds)

    def _average(self, levels: Tensor, c: Tensor | None, samples: int) -> Tensor:
        """The logarithm of the mean of what so many bounds of each image's probability say."""
        at_once = max(1, AT_ONCE // (self.flow.features * max(1, len(levels))))
        sums = []
        for copies in [min(at_once, samples - done) for done in range(0, samples, at_once)]:
            bound = self._bound(levels.repeat(copies, 1), None if c is None else c.repeat(copies, 1))
            sums.append(bound.view(copies, len(levels)).logsumexp(0))
        return torch.stack(sums).logsumexp(0) - math.log(samples)

    def _parts(self, levels: Tensor, c: Tensor | None, copies: int = 1) -> list[tuple[Tensor, Tensor | None]]:
        """Some images at a time with the context of each, as many as may be scored at once in so many copies."""
        size = max(1, AT_ONCE // (self.flow.features * copies))
        contexts = [None] * len(levels.split(size)) if c is None else c.split(size)
        return list(zip(levels.split(size), contexts, strict=True))

    def _dequantized(self, levels: Tensor) -> tuple[Tensor, Tensor]:
        """Real numbers y in the cells of levels, and what to add to their log-density for a bound of the image's."""
        if self.noise is None:
            u = torch.rand(levels.shape, dtype=torch.double, device=levels.device)
            y, log_volume = self.cells.place(levels, u, 1 - u)
            return y.to(self.dtype), log_volume.to(self.dtype)
        u, rest, log_q = self.noise(levels)
        y, log_volume = self.cells.place(levels, u, rest)
        return y.to(self.dtype), log_volume.to(self.dtype) - log_q


class ImageDistribution(Distribution):
    """What an `ImageELF` says of images under a context."""

    def __init__(self, model: ImageELF, c: Any) -> None:
        self.model = model
        self.c = None if c is None else torch.as_tensor(c)
        batch = Size() if self.c is None else self.c.shape[: self.c.ndim - bool(model.context)]
        super().__init__(batch, Size(model.shape), validate_args=False)

    def log_prob(self, x: Any) -> Tensor:
        """As `ImageELF.log_prob`."""
        return self.model.log_prob(x, self.c)

    def sample(self, sample_shape: Size | Sequence[int] = ()) -> Tensor:
        """Images, uint8 `(*sample_shape, *batch, channels, height, width)`."""
        if isinstance(sample_shape, int):
            raise TypeError(f"sample_shape must be a tuple, got {sample_shape}: write ({sample_shape},)")
        shape, c = Size([*sample_shape, *self.batch_shape]), self.c
        if c is not None and self.batch_shape:
            event = c.shape[len(self.batch_shape) :]
            c = c.expand(*shape, *event).reshape(-1, *event)
        return self.model.sample(shape.numel(), c).reshape(*shape, *self.model.shape)
