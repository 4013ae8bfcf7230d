"""ImageELF: exact-Lipschitz flow over images of integers, with dequantisation, scoring and sampling."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any, Self

import torch
from rich.console import Console
from rich.progress import Progress
from torch import Size, Tensor
from torch.distributions import Distribution

from elflow._checks import check_bound, check_choice, check_count, check_rows
from elflow.activations import FELU, PiecewiseQuadratic, check_activation
from elflow.flows._image_input import ImageContext, Images, check_images, encode_context
from elflow.flows.levels import Levels
from elflow.flows.multiscale import ConvolutionalELFTransform, MultiscaleELF
from elflow.flows.noise import DEQUANTIZATIONS, ImageNoise, check_noise_sizes
from elflow.kernels import has_double
from elflow.nn import InitializesParts
from elflow.transforms import invert, warn_not_converged

__all__ = ["ImageELF"]

N_INITIAL_IMAGES = 512
"""Number of images that initialise the ActNorms."""
MAX_NUMBERS_AT_ONCE = 2**18
"""Maximum number of coordinates (images times features) scored at once if no gradients are needed."""


class ImageELF(InitializesParts):
    """Exact-Lipschitz flow over images of integers: the paper's image model.

    Dequantisation maps each level of a pixel to a cell of (0, 1), draws a point in it, and passes its logit to the
    flow. The expected value of `log_prob` is therefore a lower bound on the log-probability of the image.

    The first batch passed to `log_prob` in training mode initialises the ActNorms and the widths of the cells.

    Reference:
        ELF: Exact-Lipschitz Based Universal Density Approximator Flow (Gopal, 2021)

    Arguments:
        shape: Channels, height and width.
        levels: The number of values that a pixel can have: 0 to `levels - 1`.
        scales: The number of scales; height and width must be divisible by 2 to the power of `scales - 1`.
        transforms: The number of autoregressive transformations on each scale.
        units: The number of units of each one-dimensional network.
        channels: The width of the hypernetworks.
        blocks: The number of residual blocks of each hypernetwork.
        dequantization: Distribution of the points in their cells: `"uniform"`, or `"variational"` for a learned one.
        warp: Widths of the cells. `"none"`: all equal. `"zeros"`: level 0 has its fraction of all pixels, the others
            are equal, as in the paper for MNIST. `"histogram"`: each width is the frequency of the level.
        classes: The number of classes, for a distribution of images given their class.
        context: The number of context features, for a distribution of images given a vector.
        bound: The maximum Lipschitz constant of the one-dimensional networks, in (0, 1).
        activation: The activation function of their units.
        parametrization: The outputs of the hypernetworks: `"bumps"`, or `"weights"` for the paper's own model, as for
            `ELF`. With `"weights"`, learned noise is conditioned on the image as in the paper, too.
        noise_sizes: Sizes of the flow of learned noise that differ: `transforms` (2), `units`, `channels`, `blocks`.
        attention: The number of heads of causal self-attention on scales of at most 16 x 16 pixels; 0 for none.

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
        parametrization: str = "bumps",
        noise_sizes: dict[str, int] | None = None,
        attention: int = 0,
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
            "parametrization": parametrization,
        }
        noise_sizes = check_noise_sizes(noise_sizes or {})
        scales, transforms = check_count("scales", scales), check_count("transforms", transforms)
        levels = check_count("levels", levels, least=2)
        self.classes = classes = check_count("classes", classes, least=0)
        self.context = context = check_count("context", context, least=0)
        if classes and context:
            raise ValueError(f"classes and context cannot both be given, got classes={classes}, context={context}")
        self.cells = Levels(levels, warp)
        self.flow = MultiscaleELF(shape, classes or context, scales, transforms, **sizes, attention=attention)
        self.shape, is_learned = self.flow.shape, dequantization == "variational"
        self.noise = ImageNoise(self.shape, levels, **sizes | noise_sizes) if is_learned else None
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
            "noise_sizes": noise_sizes,
            "attention": int(attention),
        }

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Self:
        """Build an untrained flow from the configuration of another one, `flow.config`."""
        return cls(**config | {"activation": PiecewiseQuadratic(**config["activation"])})

    @property
    def levels(self) -> int:
        """The number of values that a pixel can have."""
        return self.cells.levels

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the parameters."""
        return self.flow.dtype

    @property
    def device(self) -> torch.device:
        """The device of the parameters."""
        return self.cells.widths.device

    def forward(self, c: ImageContext = None) -> ImageDistribution:
        """The distribution p(x | c).

        Arguments:
            c: Classes `(N,)` or one class, vectors `(N, context)` or one vector; None for a flow without context.
        """
        return ImageDistribution(self, c)

    def initialize_parts(self, x: Images, c: ImageContext) -> None:
        """Initialise the widths of the cells from all images, and the ActNorms from 512 of them.

        Arguments:
            x: Images, integers `(N, channels, height, width)`.
            c: Their classes `(N,)` or vectors `(N, context)`; None for a flow without context.
        """
        levels = self._check_images(x)
        context = self._encode_context(c, len(levels))
        self.cells.initialize(levels)
        # Every k-th image: the first ones may all be of one class.
        some = slice(None, None, max(1, len(levels) // N_INITIAL_IMAGES))
        levels = levels[some][:N_INITIAL_IMAGES]
        context = None if context is None else context[some][:N_INITIAL_IMAGES]
        if self.noise is not None:
            self.noise.initialize(levels)
        self.flow.initialize(self._dequantize(levels)[0], context)

    def draw_noise(self, n: int) -> Tensor:
        """Random numbers from which `log_prob` computes the points of n images, `(n, features)`."""
        shape = n, self.flow.features
        if self.noise is not None:
            return torch.randn(shape, dtype=self.dtype, device=self.device)
        dtype = torch.double if has_double(self.device) else torch.float32
        # A position of zero, which float32 draws once in 2^24, would be a logit far from all others.
        return torch.rand(shape, dtype=dtype, device=self.device).clamp(min=torch.finfo(dtype).eps / 4)

    def log_prob(self, x: Images, c: ImageContext = None, noise: Tensor | None = None) -> Tensor:
        """Stochastic lower bound (in expectation) on the log-probability of each image, in nats.

        Arguments:
            x: Images, integers `(N, channels, height, width)`.
            c: Their classes `(N,)` or vectors `(N, context)`, or one for all; None for a flow without context.
            noise: Random numbers of `draw_noise(N)`; None draws new ones.

        Returns:
            `(N,)`.
        """
        levels = self._check_images(x)
        if self.training and not self.initialized and len(levels):
            self.initialize(x, c)
        return self._compute_bound(levels, self._encode_context(c, len(levels)), noise)

    @torch.no_grad()
    def bits_per_dim(self, x: Images, c: ImageContext = None, n_draws: int = 1) -> Tensor:
        """Stochastic upper bound (in expectation) on the bits per dimension of each image.

        Arguments:
            x: Images, integers `(N, channels, height, width)`.
            c: Their classes `(N,)` or vectors `(N, context)`, or one for all; None for a flow without context.
            n_draws: The number of points of the cells that a bound is computed from. More points make it tighter
                (importance-weighted bound, Burda et al., 2016).

        Returns:
            `(N,)`.

        Example:
            >>> img = ImageELF((1, 2, 2), levels=2, scales=1, transforms=1, units=4, channels=4, blocks=1)
            >>> img.bits_per_dim(torch.tensor([[[[0, 1], [1, 0]]]]), n_draws=100).shape
            torch.Size([1])
        """
        levels = self._check_images(x)
        blocks = self._split(levels, self._encode_context(c, len(levels)), check_count("n_draws", n_draws))
        nats = torch.cat([self._compute_weighted_bound(*block, n_draws) for block in blocks])
        return -nats / (self.flow.features * math.log(2))

    def sample(
        self,
        n: int,
        c: ImageContext = None,
        method: str = "exact",
        tol: float | None = None,
        verbose: bool = False,
        return_info: bool = False,
    ) -> Any:
        """Sample images.

        Arguments:
            n: The number of images.
            c: One class or vector for all images, or classes `(n,)` or vectors `(n, context)`.
            method: Method that inverts the layers: see `elflow.transforms.METHODS`.
            tol: The residual at which an image has settled in a layer: see `elflow.transforms.invert`.
            verbose: Whether to show a progress bar.
            return_info: Whether to return the diagnostics of the inverse as well.

        Returns:
            Images, uint8 `(n, channels, height, width)`; with `return_info` also an `InverseInfo`, whose `calls` are
            the numbers of evaluations of each layer's hypernetwork.

        Example:
            >>> img = ImageELF((1, 4, 4), levels=4, scales=2, transforms=1, units=4, channels=4, blocks=1, classes=3)
            >>> img.sample(2, c=[0, 2]).shape
            torch.Size([2, 1, 4, 4])
            >>> images, info = img.sample(2, c=1, return_info=True)
            >>> len(info.calls), info.converged
            (2, True)
        """
        z = torch.randn(check_count("n", n, least=0), self.flow.features, dtype=self.dtype, device=self.device)
        return self.decode(z, c, method, tol, verbose, return_info)

    @torch.no_grad()
    def encode(self, x: Images, c: ImageContext = None) -> Tensor:
        """Map images to latent space, using the midpoint of each pixel's cell.

        Arguments:
            x: Images, integers `(N, channels, height, width)`.
            c: Their classes `(N,)` or vectors `(N, context)`, or one for all; None for a flow without context.

        Returns:
            `(N, features)`, where `features` is `channels * height * width`.

        Example:
            >>> img = ImageELF((1, 4, 4), levels=4, scales=2, transforms=1, units=4, channels=4, blocks=1)
            >>> x = torch.randint(4, (5, 1, 4, 4))
            >>> z = img.encode(x)
            >>> z.shape, bool((img.decode(z) == x).all())
            (torch.Size([5, 16]), True)
        """
        levels = self._check_images(x)
        middle = torch.full(levels.shape, 0.5, dtype=self.dtype, device=self.device)
        y, _ = self.cells.dequantize(levels, middle, middle)
        return self.flow.transform(self._encode_context(c, len(levels)))(y)

    @torch.no_grad()
    def decode(
        self,
        z: Tensor,
        c: ImageContext = None,
        method: str = "exact",
        tol: float | None = None,
        verbose: bool = False,
        return_info: bool = False,
    ) -> Any:
        """Map latent points `(N, features)` to images; for the other arguments and the result see `sample`."""
        check_rows("z", z, self.flow.features, "feature", self.dtype)
        if z.ndim != 2:
            raise ValueError(f"z must have the shape (N, {self.flow.features}), got {tuple(z.shape)}")
        transform = self.flow.transform(self._encode_context(c, len(z)))
        layers = sum(isinstance(m, ConvolutionalELFTransform) for m in self.flow.modules())
        with Progress(console=Console(stderr=True), transient=True, disable=not verbose) as bar:
            task = bar.add_task("sampling", total=len(z) * layers)
            y, info = invert(transform, z, tol, method, partial(bar.advance, task))
        channels, height, width = self.shape
        images = self.cells.quantize(y).reshape(-1, height, width, channels).permute(0, 3, 1, 2).contiguous()
        if return_info:
            return images, info
        if not info.converged:
            warn_not_converged(info)
        return images

    def reconstruct(self, x: Images, c: ImageContext = None) -> Tensor:
        """Map images to latent space and back, which returns the same images unless the inverse fails.

        Arguments:
            x: Images, integers `(N, channels, height, width)`.
            c: Their classes `(N,)` or vectors `(N, context)`, or one for all; None for a flow without context.

        Returns:
            uint8 `(N, channels, height, width)`.
        """
        return self.decode(self.encode(x, c), c)

    def _check_images(self, x: Images) -> Tensor:
        return check_images(x, self.shape, self.levels, self.device)

    def _encode_context(self, c: ImageContext, n: int) -> Tensor | None:
        return encode_context(c, n, self.classes, self.context, self.dtype, self.device)

    def _compute_bound(self, levels: Tensor, c: Tensor | None, noise: Tensor | None = None) -> Tensor:
        """Lower bound on the log-probability of each image, from one point of its cells, `(N,)`."""
        blocks = [(levels, c)] if torch.is_grad_enabled() else self._split(levels, c)
        bounds: list[Tensor] = []
        done = 0
        for block, context in blocks:
            y, log_volume = self._dequantize(block, None if noise is None else noise[done : done + len(block)])
            done += len(block)
            # Not flow(context), which would set the ActNorms: only `initialize` may, together with the cells.
            bounds.append(self.flow.make_distribution(context).log_prob(y) + log_volume)
        return torch.cat(bounds)

    def _compute_weighted_bound(self, levels: Tensor, c: Tensor | None, n_draws: int) -> Tensor:
        """Importance-weighted bound: log of the mean of exp(bound) over `n_draws` bounds of each image, `(N,)`."""
        max_copies = max(1, MAX_NUMBERS_AT_ONCE // (self.flow.features * max(1, len(levels))))
        sums = []
        for copies in [min(max_copies, n_draws - done) for done in range(0, n_draws, max_copies)]:
            bound = self._compute_bound(levels.repeat(copies, 1), None if c is None else c.repeat(copies, 1))
            sums.append(bound.view(copies, len(levels)).logsumexp(0))
        return torch.stack(sums).logsumexp(0) - math.log(n_draws)

    def _split(self, levels: Tensor, c: Tensor | None, copies: int = 1) -> list[tuple[Tensor, Tensor | None]]:
        """Blocks of images with their context, each small enough to score `copies` copies of it at once."""
        size = max(1, MAX_NUMBERS_AT_ONCE // (self.flow.features * copies))
        contexts = [None] * len(levels.split(size)) if c is None else c.split(size)
        return list(zip(levels.split(size), contexts, strict=True))

    def _dequantize(self, levels: Tensor, noise: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Draw logits y from the cells of levels, with the noise of `draw_noise`.

        Returns y, `(N, features)`, and the term that makes its log-density a bound for the image, `(N,)`.
        """
        noise = self.draw_noise(len(levels)) if noise is None else noise
        if self.noise is None:
            u = noise
            y, log_volume = self.cells.dequantize(levels, u, 1 - u)
            return y.to(self.dtype), log_volume.to(self.dtype)
        u, complement, log_q = self.noise(levels, noise)
        y, log_volume = self.cells.dequantize(levels, u, complement)
        return y.to(self.dtype), log_volume.to(self.dtype) - log_q


class ImageDistribution(Distribution):
    """Distribution of images under an `ImageELF`, given a context.

    Arguments:
        model: The flow.
        c: Classes `(N,)` or one class, vectors `(N, context)` or one vector; None for a flow without context.

    Example:
        >>> img = ImageELF((1, 4, 4), levels=4, scales=1, transforms=1, units=4, channels=4, blocks=1, classes=3)
        >>> img([0, 1, 2]).sample((2,)).shape
        torch.Size([2, 3, 1, 4, 4])
    """

    def __init__(self, model: ImageELF, c: ImageContext) -> None:
        self.model = model
        self.c = None if c is None else torch.as_tensor(c)
        batch = Size() if self.c is None else self.c.shape[: self.c.ndim - bool(model.context)]
        super().__init__(batch, Size(model.shape), validate_args=False)

    def log_prob(self, x: Images, noise: Tensor | None = None) -> Tensor:
        """Stochastic lower bound (in expectation) on the log-probability of each image: see `ImageELF.log_prob`."""
        return self.model.log_prob(x, self.c, noise)

    def sample(self, sample_shape: Size | Sequence[int] = ()) -> Tensor:
        """Sample images, uint8 `(*sample_shape, *batch, channels, height, width)`."""
        if isinstance(sample_shape, int):
            raise TypeError(f"sample_shape must be a tuple, got {sample_shape}: write ({sample_shape},)")
        shape, c = Size([*sample_shape, *self.batch_shape]), self.c
        if c is not None and self.batch_shape:
            event = c.shape[len(self.batch_shape) :]
            c = c.expand(*shape, *event).reshape(-1, *event)
        return self.model.sample(shape.numel(), c).reshape(*shape, *self.model.shape)
