"""Reports on the quality of a fitted density: `write` an HTML page, or `measure` its numbers and `judge` them.

`write_drift` writes the page of a comparison with new rows.

`elflow.report.html` and `elflow.report.baselines` are also useful without a report.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from elflow.report.drift import write_drift
    from elflow.report.findings import Findings, measure
    from elflow.report.verdicts import LEVELS, Verdict, judge
    from elflow.report.writer import write

__all__ = ["LEVELS", "Findings", "Verdict", "judge", "measure", "write", "write_drift"]

_HOMES = {
    "Findings": "elflow.report.findings",
    "LEVELS": "elflow.report.verdicts",
    "Verdict": "elflow.report.verdicts",
    "judge": "elflow.report.verdicts",
    "measure": "elflow.report.findings",
    "write": "elflow.report.writer",
    "write_drift": "elflow.report.drift",
}


def __getattr__(name: str) -> Any:
    """Import names on first use, because matplotlib, pandas and scikit-learn are slow to import."""
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
