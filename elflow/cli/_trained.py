"""How a model of images was trained, which stands in the notes of its file."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from elflow.cli._images import bits_in_words
from elflow.cli._models import why_stopped
from elflow.cli._terminal import duration

KEY = "training"
"""What the notes in a file call it."""


@dataclass(frozen=True)
class Trained:
    """How a training went.

    Example:
        >>> Trained("5f3c", 1348, 2_000, 119.9, "time_limit", 120.0, 1.9876, 0.0123).how
        '2,000 steps in 2 min 0 s, until the time was up'
    """

    fingerprint: str
    """What data and settings it is of."""
    images: int
    """How many it was trained on."""
    steps: int
    seconds: float
    stopped: str
    time_limit: float | None
    bits_per_dim: float
    """The mean of the images that were held out."""
    standard_error: float | None

    @property
    def how(self) -> str:
        """Steps, time and why it ended."""
        return f"{self.steps:,} steps in {duration(self.seconds)}, until {why_stopped(self.stopped)}"

    @property
    def held_out(self) -> str:
        """How good it is on images that it has not seen."""
        return bits_in_words(self.bits_per_dim, self.standard_error)


def save_trained(flow: Any, path: Path, trained: Trained) -> None:
    """Writes a flow as `elflow.save` does, with how it was trained."""
    import elflow

    elflow.save(flow, path, notes={KEY: asdict(trained)})


def load_trained(path: Path) -> Trained | None:
    """How the model in a file was trained; None if it does not say so."""
    from elflow.serialization import read_notes

    try:
        found = Trained(**read_notes(path)[KEY])
        _ = found.how, found.held_out  # which fail for what is no number
    except (LookupError, TypeError, ValueError):
        return None
    return found
