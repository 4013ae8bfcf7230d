"""Training of flows by maximum likelihood."""

from elflow.training.loop import History, train

__all__ = ["History", "train"]
