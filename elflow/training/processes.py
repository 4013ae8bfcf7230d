"""Training in several processes: shares of rows, common decisions and sums, and the module that is wrapped for them."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor, nn

from elflow.training.averages import Mean
from elflow.training.rows import Rows

if TYPE_CHECKING:
    from lightning_fabric import Fabric

__all__ = ["LogLikelihood", "gather_log_probs", "is_any", "sum_means", "sum_rows", "take_share"]


class LogLikelihood(nn.Module):
    """Log-likelihood of rows: the weighted sum of their log-densities, and the sum of the weights.

    This is a module because distributed strategies wrap the forward pass of a module.
    """

    def __init__(self, flow: nn.Module) -> None:
        super().__init__()
        self.flow = flow

    def forward(self, rows: Rows) -> tuple[Tensor, float]:
        return sum_rows(rows.log_prob(self.flow(rows.context)), rows.weight)


def sum_rows(log_prob: Tensor, weight: Tensor | None) -> tuple[Tensor, float]:
    """Weighted sum of the log-densities of rows, and the sum of the weights."""
    if weight is None:
        return log_prob.sum(), float(len(log_prob))
    return (log_prob * weight).sum(), float(weight.sum())


def take_share(rows: Rows, flow: nn.Module, fabric: Fabric) -> Rows:
    """The share of this process in rows of all processes, with its noise."""
    rows = rows.draw_noise(flow)
    if fabric.world_size > 1:
        rows = rows.take(slice(fabric.global_rank, None, fabric.world_size))
    return rows.to(fabric.device)


def is_any(condition: bool, fabric: Fabric) -> bool:
    """Whether a condition holds in any of the processes, so that all of them take the same decision."""
    if fabric.world_size == 1:
        return condition
    count = torch.tensor(float(condition), device=fabric.device)
    return bool(cast(Tensor, fabric.all_reduce(count, reduce_op="sum")) > 0)


def gather_log_probs(log_probs: Tensor, count: int, fabric: Fabric) -> Tensor:
    """Log-densities of `count` rows, `(parts, count)`, from the shares of all processes, which take turns."""
    if fabric.world_size == 1:
        return log_probs
    size = -(-count // fabric.world_size)
    shares = fabric.all_gather(nn.functional.pad(log_probs, (0, size - log_probs.shape[1])))
    return cast(Tensor, shares).movedim(0, -1).flatten(1)[:, :count]


def sum_means(mean: Mean, fabric: Fabric) -> Mean:
    """The mean over the rows of all processes."""
    if fabric.world_size == 1:
        return mean
    sums = torch.tensor([mean.total, mean.weight], dtype=torch.float64, device=fabric.device)
    total = Mean()
    total.total, total.weight = cast(Tensor, fabric.all_reduce(sums, reduce_op="sum")).tolist()
    return total
