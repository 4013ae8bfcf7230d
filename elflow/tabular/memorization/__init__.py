"""Memorization: whether samples of a density are closer to its training rows than chance explains."""

from elflow.tabular.memorization._memorization import Distances, Memorization, find_memorization

__all__ = ["Distances", "Memorization", "find_memorization"]
