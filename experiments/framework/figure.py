"""Style of the figures, and writing them to files."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from elflow._files import replacing

__all__ = ["ACCENT", "GREEN", "INK", "SOFT", "draw_figure"]

INK, ACCENT, SOFT, GREEN = "#1f2d3d", "#c0392b", "#9aa5b1", "#1d6b4f"
STYLE: Any = {
    "axes.edgecolor": SOFT,
    "axes.labelcolor": INK,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlesize": 10,
    "font.size": 9,
    "text.color": INK,
}


@contextmanager
def draw_figure(path: Path, rows: int = 1, columns: int = 1, **options: Any) -> Iterator[tuple[Any, Any]]:
    """A matplotlib figure and its axes `(rows, columns)`, written to a PNG file at the end of the block.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     with draw_figure(Path(folder, "line.png"), figsize=(3, 2)) as (figure, axes):
        ...         lines = axes[0, 0].plot([0, 1], [0, 1])
        ...     Path(folder, "line.png").read_bytes()[:4]
        b'\\x89PNG'
    """
    import matplotlib

    matplotlib.use("Agg")  # no display
    import matplotlib.pyplot as plt

    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(rows, columns, layout="constrained", squeeze=False, **options)
        try:
            yield figure, axes
            path.parent.mkdir(parents=True, exist_ok=True)
            with replacing(path) as temporary:
                figure.savefig(temporary, dpi=150, format="png")
        finally:
            plt.close(figure)
