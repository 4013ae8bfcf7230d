"""Causal self-attention over the pixels of an image, for the hypernetworks of image flows."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import pad, scaled_dot_product_attention

__all__ = ["CausalAttention"]


class CausalAttention(nn.Module):
    """Self-attention in which a pixel sees all pixels before it, in raster order, and nothing of itself.

    The channels of a pixel form ordered groups, as in `MaskedConvolution`: a later group may depend on values that an
    earlier one must not see. Queries therefore use the first group only, while keys and values use all channels and
    the values of other pixels. The result has no information about the pixel's own values: all groups may use it.

    Arguments:
        channels: The number of channels of the hidden layer.
        values: The number of channels of the image.
        first: The number of channels in the first group.
        features: The number of features of queries, keys and values, over all heads.
        heads: The number of heads, a divisor of `features`.

    Example:
        >>> attention = CausalAttention(channels=16, values=1, first=16, features=8, heads=2)
        >>> y, cache = attention(torch.randn(5, 16, 4, 4), torch.randn(5, 1, 4, 4))
        >>> y.shape, cache.shape
        (torch.Size([5, 16, 4, 4]), torch.Size([5, 16, 16]))
    """

    def __init__(self, channels: int, values: int, first: int, features: int, heads: int) -> None:
        super().__init__()
        self.first, self.heads, self.features = first, heads, features
        # Without normalisation the scores, which are quadratic in the hidden layer, grow until training diverges.
        self.query = nn.Sequential(nn.LayerNorm(first), nn.Linear(first, features, bias=False))
        self.norm = nn.LayerNorm(channels)
        self.key_value = nn.Linear(channels + values, 2 * features, bias=False)
        self.out = nn.Linear(features, channels)
        nn.init.zeros_(self.out.weight)  # the layer is the identity initially
        nn.init.zeros_(self.out.bias)

    def forward(self, x: Tensor, image: Tensor, before: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """The sum of x and the result, and the keys and values of these pixels.

        Arguments:
            x: Some rows of the hidden layer, `(N, channels, height, width)`.
            image: The same rows of the image, `(N, values, height, width)`.
            before: Keys and values of the pixels above these rows, `(N, pixels, 2 * features)`; None for no pixels.
        """
        tokens, pixels = (part.permute(0, 2, 3, 1).flatten(1, 2) for part in (x, image))
        y, own = self.attend(tokens, pixels, before)
        return y.unflatten(1, x.shape[2:]).permute(0, 3, 1, 2), own

    def attend(self, tokens: Tensor, pixels: Tensor, before: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Attention of pixels in raster order: hidden layer `(N, n, channels)` and image `(N, n, values)`."""
        own = self.key_value(torch.cat([self.norm(tokens), pixels], dim=-1))
        # Shifted by one pixel: a query sees those up to its own place. The first, of zeros, stands for no pixel.
        seen = own if before is None else torch.cat([before, own], dim=1)
        key, value = self._split_heads(pad(seen[:, :-1], (0, 0, 1, 0))).chunk(2, dim=-1)
        query = self._split_heads(self.query(tokens[..., : self.first]))
        n_before = seen.shape[1] - own.shape[1]
        mask = None
        if n_before:
            mask = torch.ones(query.shape[2], key.shape[2], dtype=torch.bool, device=own.device).tril(n_before)
        result = scaled_dot_product_attention(query, key, value, mask, is_causal=mask is None)
        return tokens + self.out(result.transpose(1, 2).flatten(2)), own

    def _split_heads(self, x: Tensor) -> Tensor:
        """`(N, pixels, features)` as `(N, heads, pixels, features of a head)`."""
        return x.unflatten(-1, (self.heads, -1)).transpose(1, 2)
