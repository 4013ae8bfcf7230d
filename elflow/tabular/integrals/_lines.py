"""Joint log-densities along one feature of rows."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor, nn

from elflow.tabular.integrals._precision import evaluate_points

__all__ = ["Lines"]


class Lines(NamedTuple):
    """Lines along one feature through D points of each of N rows, for instance points of the cells of other features.

    Example:
        >>> import elflow, torch
        >>> lines = Lines(torch.zeros(1, 4, 2).double(), torch.zeros(1, 4).double(), position=1)
        >>> lines.evaluate(elflow.ELF(features=2).double().eval(), torch.zeros(4, 7).double()).shape
        torch.Size([1, 4, 7])
    """

    z: Tensor
    """Points on the lines, in double precision, `(D, N, features)`."""
    log_volume: Tensor
    """Terms to add to the log-densities along the lines, `(D, N)`."""
    position: int
    """Position of the feature."""
    context: Tensor | None = None
    """Encoded context of the rows, `(N, context)`."""

    @property
    def n_draws(self) -> int:
        """Number D of lines of each row."""
        return self.z.shape[0]

    @property
    def n_rows(self) -> int:
        """Number N of rows."""
        return self.z.shape[1]

    def take(self, index: Tensor) -> Lines:
        """Lines of the rows at N indices."""
        context = None if self.context is None else self.context[index]
        return Lines(self.z[:, index], self.log_volume[:, index], self.position, context)

    def evaluate(self, flow: nn.Module, points: Tensor) -> Tensor:
        """Joint log-density with the feature replaced by each of K points, `(D, N, K)`, in double precision.

        Arguments:
            flow: A flow over all features.
            points: Values of the feature, `(N, K)`.
        """
        # The points of a row are next to each other, where the native kernel leaves out more of what is zero.
        along = self.z[:, :, None].repeat(1, 1, points.shape[1], 1)
        along[..., self.position] = points
        c = None if self.context is None else self.context[:, None].expand(-1, points.shape[1], -1)
        return evaluate_points(flow, along, c) + self.log_volume[..., None]
