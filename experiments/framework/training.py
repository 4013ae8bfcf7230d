"""Training shared by the experiments."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from torch import Tensor, nn

from elflow.training import Recipe, Training, fit, make_fabric

__all__ = ["fit_batches"]

F = TypeVar("F", bound=nn.Module)


def fit_batches(
    flow: F,
    draw_batch: Callable[[], Tensor],
    steps: int,
    learning_rate: float = 2e-3,
    ema_decay: float = 0.995,
    rounds: int = 100,
    seed: int = 0,
    device: str = "cpu",
    max_grad_norm: float = 1.0,
    schedule: str = "step",
    checkpoint: Path | None = None,
) -> tuple[F, Training]:
    """Fit a flow to batches that are drawn for each step.

    Arguments:
        flow: The flow.
        draw_batch: Returns the next batch, `(N, features)`.
        steps: The number of steps.
        learning_rate: The initial learning rate of Adam.
        ema_decay: The decay of the averaged weights.
        rounds: The number of entries of the history, about.
        seed: The random seed.
        device: `"cpu"` or `"cuda"`.
        max_grad_norm: The maximum norm of the gradient; infinity for no clipping.
        schedule: `"step"` halves the learning rate every quarter of the steps, `"cosine"` decays it to zero.
        checkpoint: A file from which an interrupted training continues; None for none.

    Returns:
        The flow with averaged weights, and the history.

    Example:
        >>> import elflow, torch
        >>> flow = elflow.ELF(features=2, transforms=1, units=8, hidden_features=(16,))
        >>> fitted, training = fit_batches(flow, lambda: torch.randn(64, 2), steps=20, rounds=4)
        >>> [entry["step"] for entry in training.history]
        [5, 10, 15, 20]
    """
    recipe = Recipe(
        learning_rate=learning_rate,
        schedule=schedule,
        halve_every=max(1, steps // 4),
        max_steps=steps,
        round_steps=max(1, steps // rounds),
        ema_decay=ema_decay,
        max_grad_norm=max_grad_norm,
    )
    return fit(flow, draw_batch, recipe=recipe, seed=seed, checkpoint=checkpoint, fabric=make_fabric(device))
