"""What options mean: durations, bounds, kinds; and those that several commands have."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any

import typer

Model = Annotated[Path, typer.Argument(help="A model that `elflow fit` made.", metavar="MODEL", show_default=False)]
Data = Annotated[
    Path,
    typer.Argument(
        help="The table: .csv, .tsv, .csv.gz or .parquet, with a header.", metavar="DATA", show_default=False
    ),
]
Missing = Annotated[
    list[str] | None,
    typer.Option("--na", help="What stands for a missing value, besides NA and the like.", metavar="TEXT"),
]
Threads = Annotated[int | None, typer.Option(help="How many threads compute.", min=1, show_default=False)]
Seed = Annotated[int, typer.Option(help="The same seed gives the same result.", min=0)]
TimeLimit = Annotated[str | None, typer.Option(help="For how long to train: 90s, 10m, 1h30m.", show_default=False)]
MaxSteps = Annotated[int | None, typer.Option(help="The most training steps.", min=1, show_default=False)]
Resume = Annotated[bool, typer.Option("--resume", help="Go on with a training that was interrupted.")]
Log = Annotated[Path | None, typer.Option(help="A folder for logs as CSV and for TensorBoard.", show_default=False)]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but errors.")]

UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def seconds(text: str) -> float:
    """A duration such as 90, 90s, 10m or 1h30m.

    Example:
        >>> seconds("1h30m"), seconds("2.5m"), seconds("45")
        (5400.0, 150.0, 45.0)
    """
    number = r"\d+(?:\.\d+)?"
    clean = text.strip().lower()
    if re.fullmatch(number, clean):
        clean += "s"
    total = sum(float(part[:-1]) * UNITS[part[-1]] for part in re.findall(f"{number}[smhd]", clean))
    if not re.fullmatch(f"(?:{number}[smhd])+", clean) or not total:
        raise ValueError(f"--time-limit must be a duration such as 90s, 10m or 1h30m, got {text!r}")
    return total


def column_options(bounds: list[str], kinds: list[str]) -> dict[str, Any]:
    """What `FlowDensity(columns=...)` takes, of `COL=LOW:HIGH` and `COL=KIND`.

    Example:
        >>> column_options(["price=0:", "share=0:1"], ["age=integer"])
        {'price': (0.0, None), 'share': (0.0, 1.0), 'age': 'integer'}
    """
    found: dict[str, Any] = {}
    for text in bounds:
        name, _, ends = text.rpartition("=")
        low, colon, high = ends.partition(":")
        if not name or not colon:
            raise ValueError(f"--bounds must be COL=LOW:HIGH, either of which may be left out, got {text!r}")
        found[name] = (_bound(low, text), _bound(high, text))
        if found[name] == (None, None):
            raise ValueError(f"--bounds must have a bound, got {text!r}")
    for text in kinds:
        name, _, kind = text.rpartition("=")
        if not name or not kind:
            raise ValueError(f"--kind must be COL=KIND, got {text!r}")
        if name in found:
            raise ValueError(f"column {name!r} must have either --bounds or --kind, got both")
        found[name] = kind
    return found


def _bound(number: str, text: str) -> float | None:
    if not number.strip():
        return None
    try:
        return float(number)
    except ValueError:
        raise ValueError(f"--bounds must be COL=LOW:HIGH with numbers, got {text!r}") from None
