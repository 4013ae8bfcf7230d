"""Training record: its history, and why training stopped."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from numbers import Real
from typing import Any

from elflow._json_types import check_json

__all__ = ["STOP_REASONS", "Training", "format_duration"]

STOP_REASONS = {
    "patience": "stopped when the held-out log-likelihood no longer improved",
    "max_steps": "completed all steps",
    "time_limit": "stopped at the time limit",
}


@dataclass(frozen=True)
class Training:
    """Record of a training run.

    Example:
        >>> entry = {"step": 2000, "seconds": 119.9, "learning_rate": 1e-3, "training": 1.5, "validation": 1.25}
        >>> training = Training([entry], seconds=120.0, stopped="time_limit")
        >>> training.describe()
        '2,000 steps in 2 min 0 s, stopped at the time limit'
        >>> Training.from_dict(training.to_dict()) == training
        True
    """

    history: list[dict[str, float]]
    """For each round: step, seconds, learning_rate, and the mean log-density of training and validation rows."""
    seconds: float
    """Wall-clock time over all runs, in seconds."""
    stopped: str
    """Why it stopped: `"patience"`, `"max_steps"` or `"time_limit"`."""
    skipped: int = 0
    """Number of steps skipped because their loss or gradient was not finite."""

    def __post_init__(self) -> None:
        if self.stopped not in STOP_REASONS:
            raise ValueError(f"stopped must be one of {list(STOP_REASONS)}, got {self.stopped!r}")
        if not isinstance(self.history, list) or not self.history:
            raise ValueError("history must have at least one round, got none")

    @property
    def steps(self) -> int:
        """Number of training steps."""
        return int(self.history[-1]["step"])

    def describe(self) -> str:
        """Steps, time and the reason for stopping, as a phrase."""
        return f"{self.steps:,} steps in {format_duration(self.seconds)}, {STOP_REASONS[self.stopped]}"

    def to_dict(self) -> dict[str, Any]:
        """The record as a dictionary for JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, state: dict[str, Any]) -> Training:
        """Build the record from the result of `to_dict`."""
        # Log-likelihoods in the history may be NaN, which the types of JSON exclude: each round is checked for itself.
        check_json(state | {"history": []} if isinstance(state, dict) else state, Training, "training")
        check_json(state["history"], list[dict[str, Any]], "training.history")
        for number, entry in enumerate(state["history"]):
            wrong = [name for name, value in entry.items() if isinstance(value, bool) or not isinstance(value, Real)]
            if wrong or not isinstance(entry.get("step"), int):
                raise ValueError(f"training.history[{number}] must have numbers and a step, got {entry}")
        training = cls(**state)
        training.describe()  # raises an error for numbers out of range
        return training


def format_duration(seconds: float) -> str:
    """Format a duration in seconds, minutes or hours.

    Example:
        >>> format_duration(4.25), format_duration(95), format_duration(7260)
        ('4.2 s', '1 min 35 s', '2 h 1 min')
    """
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"
