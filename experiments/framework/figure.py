"""How the figures look, and how they are written."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from elflow._files import replacing

if TYPE_CHECKING:
    from matplotlib.figure import Figure

INK, ACCENT, SOFT = "#1f2d3d", "#c0392b", "#9aa5b1"
STYLE: Any = {
    "axes.edgecolor": SOFT,
    "axes.labelcolor": INK,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlesize": 10,
    "font.size": 9,
    "text.color": INK,
}


def pyplot() -> Any:
    """matplotlib's pyplot, without a display."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    return plt


def save(figure: Figure, path: Path) -> None:
    """Writes a PNG whole or not at all, making the folder where there is none."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as temporary:
        figure.savefig(temporary, dpi=150, format="png")
