"""Block neural autoregressive flows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.distributions import Transform, constraints
from torch.nn.functional import linear, logsigmoid, softplus
from zuko.distributions import DiagNormal
from zuko.flows import Flow
from zuko.lazy import LazyTransform, UnconditionalDistribution, UnconditionalTransform
from zuko.transforms import PermutationTransform
from zuko.utils import bisection

from experiments.systems.mixtures import refuse_context

__all__ = ["BNAF", "BlockTransform"]

MAX_DISTANCE = 2.0**30
"""Maximum distance from zero at which the inverse searches for a coordinate."""


class BlockLinear(nn.Module):
    """A linear layer of d x d blocks: positive ones on the diagonal, free ones below it, none above it.

    Rows have a learned norm (weight normalisation).

    Arguments:
        features: The number of blocks on each side, d.
        inputs: The columns of a block.
        outputs: The rows of a block.

    Example:
        >>> weight, bias, log_diagonal = BlockLinear(features=3, inputs=2, outputs=4)()
        >>> weight.shape, bias.shape, log_diagonal.shape
        (torch.Size([12, 6]), torch.Size([12]), torch.Size([3, 4, 2]))
    """

    diagonal: Tensor
    below: Tensor

    def __init__(self, features: int, inputs: int, outputs: int) -> None:
        super().__init__()
        self.blocks = features, outputs, inputs
        rows, columns = features * outputs, features * inputs
        self.weight = nn.Parameter(torch.empty(rows, columns))
        nn.init.xavier_uniform_(self.weight)
        # Found by trial: units of the first layer lie all over the data, and wide layers do not begin too steep.
        least, most, spread = (0.5, 2.5, 3) if inputs == 1 else (0.1, 1, 1)
        self.log_norm = nn.Parameter(torch.empty(rows).uniform_(least, most).log() - math.log(inputs) / 4)
        self.bias = nn.Parameter(torch.empty(rows).uniform_(-spread, spread))
        block = torch.ones(outputs, inputs, dtype=torch.bool)
        self.register_buffer("diagonal", torch.block_diag(*[block] * features), persistent=False)
        below = torch.ones(features, features, dtype=torch.bool).tril(-1)
        self.register_buffer("below", torch.kron(below, block), persistent=False)

    def forward(self) -> tuple[Tensor, Tensor, Tensor]:
        """The matrix, the bias, and the logarithms of the blocks on the diagonal, `(features, outputs, inputs)`."""
        weight = torch.where(self.diagonal, self.weight.exp(), self.weight * self.below)
        log_scale = self.log_norm - weight.norm(dim=-1).log()
        features, outputs, inputs = self.blocks
        blocks = (self.weight + log_scale[:, None]).view(features, outputs, features, inputs)
        return log_scale.exp()[:, None] * weight, self.bias, blocks.diagonal(dim1=0, dim2=2).movedim(-1, 0)

    def extra_repr(self) -> str:
        features, outputs, inputs = self.blocks
        return f"features={features}, inputs={inputs}, outputs={outputs}"


class BlockTransform(Transform):
    """y = (1 - g) x + g N(x), with N a network of block-triangular layers with tanh between them, and g in (0, 1).

    y_i depends on x_1 to x_i and increases in x_i. N is bounded, so the share of x makes the map one onto the whole
    space.

    Arguments:
        layers: The matrix, the bias and the logarithms of the blocks of each layer, as of `BlockLinear`.
        gate: The logit of g.
        tolerance: How close the inverse comes to each coordinate.
    """

    domain = constraints.real_vector
    codomain = constraints.real_vector
    bijective = True

    def __init__(self, layers: Sequence[tuple[Tensor, Tensor, Tensor]], gate: Tensor, tolerance: float = 1e-6) -> None:
        super().__init__()
        self.layers = layers
        self.gate = gate
        self.tolerance = tolerance

    def call_and_ladj(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """y and the log-determinant, from the logarithms of dh_i/dx_i: products of matrices of logarithms."""
        h, slopes = x, x.new_zeros(*x.shape, 1)  # (..., features, units of the layer)
        for index, (weight, bias, log_diagonal) in enumerate(self.layers):
            if index > 0:
                slopes = slopes + 2 * (math.log(2) - h - softplus(-2 * h)).view(slopes.shape)  # of tanh
                h = h.tanh()
            h = linear(h, weight, bias)
            slopes = _log_matmul(log_diagonal, slopes)
        slopes = torch.logaddexp(slopes.squeeze(-1) + logsigmoid(self.gate), logsigmoid(-self.gate))
        return self._mixed(x, h), slopes.sum(-1)

    def _call(self, x: Tensor) -> Tensor:
        """The map; it also accepts the first features without the others."""
        h, features = x, x.shape[-1]
        for index, (weight, bias, log_diagonal) in enumerate(self.layers):
            rows, columns = features * log_diagonal.shape[1], features * log_diagonal.shape[2]
            h = linear(h.tanh() if index > 0 else h, weight[:rows, :columns], bias[:rows])
        return self._mixed(x, h)

    def _mixed(self, x: Tensor, h: Tensor) -> Tensor:
        return torch.lerp(x, h, torch.sigmoid(self.gate))

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        return self.call_and_ladj(x)[1]

    def _inverse(self, y: Tensor) -> Tensor:
        """Invert one coordinate after the other by bisection."""
        x = y[..., :0]
        for target in y.unbind(-1):
            x = torch.cat([x, self._coordinate(x, target)[..., None]], dim=-1)
        return x

    def _coordinate(self, before: Tensor, target: Tensor) -> Tensor:
        """The coordinate after those of `before` at which y equals the target."""

        def y(coordinate: Tensor) -> Tensor:
            return self._call(torch.cat([before, coordinate[..., None]], dim=-1))[..., -1]

        with torch.no_grad():
            bound = torch.ones_like(target)
            while not (inside := (y(-bound) <= target) & (target <= y(bound))).all():
                bound = torch.where(inside, bound, 2 * bound)
                if bound.max() > MAX_DISTANCE:
                    raise ArithmeticError(
                        f"{int((~inside).sum())} of the {inside.numel()} coordinates {before.shape[-1]} to be inverted "
                        f"are not within {MAX_DISTANCE:g} of zero: look for weights or targets that are not finite"
                    )
            steps = math.ceil(math.log2(2 * bound.max().item() / self.tolerance))
        phi = [before, self.gate, *(part for layer in self.layers for part in layer[:2])]
        return bisection(y, target, -bound, bound, n=steps, phi=[p for p in phi if p.requires_grad])


def _log_matmul(a: Tensor, b: Tensor) -> Tensor:
    """log(exp(A) exp(b)) for matrices `(..., m, n)` and vectors `(..., n)`, computed stably."""
    top_a, top_b = a.amax(-1, keepdim=True).detach(), b.amax(-1, keepdim=True).detach()
    product = torch.einsum("...mn,...n->...m", (a - top_a).exp(), (b - top_b).exp())
    return product.log() + top_a.squeeze(-1) + top_b


class BlockAutoregressiveTransform(LazyTransform):
    """The networks of a `BlockTransform`.

    Arguments:
        features: The number of features.
        hidden_features: The units of each feature in each hidden layer.
    """

    def __init__(self, features: int, hidden_features: Sequence[int]) -> None:
        super().__init__()
        sizes = [1, *hidden_features, 1]
        self.layers = nn.ModuleList(BlockLinear(features, inputs, outputs) for inputs, outputs in pairwise(sizes))
        self.gate = nn.Parameter(torch.zeros(()))

    def forward(self, c: None = None) -> BlockTransform:
        refuse_context(c)
        return BlockTransform([layer() for layer in self.layers], self.gate)


class BNAF(Flow):
    """Block neural autoregressive flow (BNAF).

    The features are in reversed order in every second transformation. Every transformation has a gated residual
    connection, also the last one, which the authors' code leaves without: its range would be bounded, and the density
    would not integrate to one.

    References:
        | Block Neural Autoregressive Flow (De Cao et al., 2019)
        | https://arxiv.org/abs/1904.04676

    Arguments:
        features: The number of features.
        transforms: The number of transformations.
        hidden_features: The units of each feature in each hidden layer.

    Example:
        >>> flow = BNAF(features=3, transforms=2, hidden_features=(8, 8))
        >>> x = flow().sample((4,))
        >>> flow().log_prob(x).shape
        torch.Size([4])
    """

    def __init__(self, features: int, transforms: int = 3, hidden_features: Sequence[int] = (16, 16)) -> None:
        layers: list[LazyTransform] = []
        for index in range(transforms):
            if index > 0:
                order = torch.arange(features).flip(0)
                layers.append(UnconditionalTransform(PermutationTransform, order, buffer=True))
            layers.append(BlockAutoregressiveTransform(features, hidden_features))
        base = UnconditionalDistribution(DiagNormal, torch.zeros(features), torch.ones(features), buffer=True)
        super().__init__(layers, base)
