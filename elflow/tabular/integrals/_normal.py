"""Standard normal distribution in intervals: probabilities and quantiles that are precise in the tails."""

from __future__ import annotations

import math

import torch
from scipy.special import log_ndtr, ndtri_exp
from torch import Tensor

__all__ = ["log_interval", "truncated_quantile"]

LOG_2PI = math.log(2 * math.pi)


def log_interval(lower: Tensor, upper: Tensor) -> Tensor:
    """Logarithm of the probability of intervals of a standard normal, precise in the tails; -inf for empty ones."""
    flip = lower + upper > 0
    low, high = torch.where(flip, -upper, lower), torch.where(flip, -lower, upper)
    low, high = low.nan_to_num(nan=-torch.inf), high.nan_to_num(nan=-torch.inf)
    log_low, log_high = _log_ndtr(low), _log_ndtr(high)
    result = log_high + torch.log(-torch.expm1((log_low - log_high).clamp(max=0.0)))
    # Where the two ends coincide in the tails, the density times the width.
    narrow = -high.square() / 2 - LOG_2PI / 2 + (high - low).clamp(min=1e-300).log()
    result = torch.where(((log_high - log_low) < 1e-6) & (high > low), narrow, result)
    return torch.where(upper > lower, result, -torch.inf).nan_to_num(nan=-torch.inf)


def truncated_quantile(u: Tensor, lower: Tensor, upper: Tensor) -> Tensor:
    """Quantiles of a standard normal that is truncated to an interval."""
    flip = lower + upper > 0
    low, high = torch.where(flip, -upper, lower), torch.where(flip, -lower, upper)
    share = torch.where(flip, 1 - u, u).clamp(1e-300, 1.0)
    log_low, log_mass = _log_ndtr(low), log_interval(low, high)
    quantile = torch.from_numpy(ndtri_exp(torch.logaddexp(log_low, log_mass + share.log()).numpy()))
    quantile = torch.where(high - low < 1e-6 * (1 + high.abs()), low + share * (high - low), quantile)
    quantile = torch.where(flip, -quantile, quantile)
    return torch.minimum(torch.maximum(quantile, lower), upper)


def _log_ndtr(x: Tensor) -> Tensor:
    return torch.from_numpy(log_ndtr(x.numpy()))
