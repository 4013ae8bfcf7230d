"""Selection of the best weights by the held-out log-likelihood, for each part of a flow by itself."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor, nn

__all__ = ["Selection", "list_parts"]


def list_parts(flow: nn.Module) -> list[str]:
    """Names of the submodules of a flow that are trained independently; the name of the flow itself is empty.

    Most flows are one part. A `FlowMixture`, whose members are trained at the same time, lists these as `flow.parts`.
    Its distribution has a method `log_probs(x)`, the log-densities `(parts, N)` of all parts. `flow.combine` makes from
    these the log-density of the whole, `(N,)`, and `flow.train_parts` takes the indices of the parts to be trained from
    now on.

    Example:
        >>> import elflow
        >>> list_parts(elflow.ELF(features=2))
        ['']
    """
    return list(getattr(flow, "parts", [""]))


class Selection:
    """The best weights so far of each part of a flow, and the parts that are still trained.

    Each part has its own best round and its own patience.

    Arguments:
        flow: The flow.
        patience: Number of rounds without a better score after which a part is not trained any more.
        race_steps: Number of steps after which only the best part is trained; None trains all of them.
    """

    def __init__(self, flow: nn.Module, patience: int, race_steps: int | None) -> None:
        self.flow = flow
        self.patience = patience
        self.race_steps = race_steps
        self.parts = list_parts(flow)
        modules = [flow.get_submodule(part) for part in self.parts]
        self.trainable = [k for k, part in enumerate(modules) if any(p.requires_grad for p in part.parameters())]
        self.trained = self.trainable
        self.scores = [-math.inf] * len(self.parts)
        self.rounds_since_best = [0] * len(self.parts)
        self.weights: dict[str, Tensor] = {}

    def update(self, weights: Mapping[str, Tensor], scores: Sequence[float], step: int) -> None:
        """Keep the weights of the parts that have improved, and stop the training of parts that have not for long.

        Arguments:
            weights: The state of the flow after a round.
            scores: The held-out log-likelihood of each part; NaN is no improvement.
            step: The number of steps so far.
        """
        is_first = not self.weights and any(score > -math.inf for score in scores)
        best_before = max(self.scores[k] for k in self.trainable)
        # The averaged weights of a part keep moving after its training has stopped: those of its best round stay.
        is_better = [
            score > best and (k in self.trained or is_first)
            for k, (score, best) in enumerate(zip(scores, self.scores, strict=True))
        ]
        # Weights outside of all parts are those of the best round of any of them.
        improves_best = is_first or self.choose_best(scores) > best_before
        for key, value in weights.items():
            owner = next((k for k, part in enumerate(self.parts) if part == "" or key.startswith(f"{part}.")), None)
            if is_first or (improves_best if owner is None else is_better[owner]):
                self.weights[key] = value.detach().clone()
        for k, (score, better) in enumerate(zip(scores, is_better, strict=True)):
            self.rounds_since_best[k] = 0 if better else self.rounds_since_best[k] + 1
            self.scores[k] = score if better else self.scores[k]
        self.train([k for k in self.trained if self.rounds_since_best[k] < self.patience])
        if self.race_steps is not None and step >= self.race_steps:
            self.train_best(1)

    def choose_best(self, scores: Sequence[float]) -> float:
        """The best score of the parts that can be trained; one that is not finite only if there is no other."""
        return max((scores[k] for k in self.trainable), key=lambda score: (math.isfinite(score), score))

    def keep(self, weights: Mapping[str, Tensor]) -> None:
        """Keep the weights of all parts: there is no score to compare."""
        self.weights = {key: value.detach().clone() for key, value in weights.items()}

    def train(self, parts: list[int]) -> None:
        """Train only these parts from now on."""
        if parts != self.trained:
            self.trained = parts
            if parts and (train_parts := getattr(self.flow, "train_parts", None)):
                train_parts(parts)

    def train_best(self, count: int) -> None:
        """Train only the best parts from now on, at most this many of those that are still trained."""
        best = sorted(self.trained, key=lambda k: self.scores[k], reverse=True)[:count]
        self.train(sorted(best))

    @property
    def rounds_left(self) -> int:
        """Number of rounds without a better score after which no part is trained any more."""
        return max((self.patience - self.rounds_since_best[k] for k in self.trained), default=0)

    def state_dict(self) -> dict[str, Any]:
        """The state for a checkpoint."""
        return {name: getattr(self, name).copy() for name in ("scores", "rounds_since_best", "weights", "trained")}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from the state of a checkpoint."""
        for name in ("scores", "rounds_since_best", "weights"):
            setattr(self, name, state[name].copy())
        self.train(state["trained"])
