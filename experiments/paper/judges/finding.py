"""Verdict on a claim of the paper, with our figure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from experiments.framework.experiment import Record

REPRODUCED, BETTER, WORSE, REFUTED = "reproduced", "better", "worse", "not reproduced"
Records = Mapping[str, Record]


class Finding(NamedTuple):
    """Our figure, the verdict, and a remark."""

    here: str
    verdict: str
    remark: str = ""


def compare(here: float, paper: float, tolerance: float, higher: bool = True) -> str:
    """The verdict on a figure.

    Arguments:
        here: Our figure.
        paper: The paper's.
        tolerance: The largest difference that counts as reproduced: the rounding of the paper's figure and errors.
        higher: Whether higher figures are better.

    Example:
        >>> compare(-3.52, -3.56, 0.005), compare(1.13, 0.87, 0.005, higher=False), compare(-2.84, -2.8, 0.05)
        ('better', 'worse', 'reproduced')
    """
    if abs(here - paper) <= tolerance:
        return REPRODUCED
    return BETTER if (here > paper) == higher else WORSE


def hold(condition: bool) -> str:
    """The verdict on a statement."""
    return REPRODUCED if condition else REFUTED
