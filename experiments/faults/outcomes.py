"""Outcomes of injected faults, and their counts."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

__all__ = ["BAD", "OUTCOMES", "Case", "Tally"]

OUTCOMES = ["refused", "harmless", "wrong", "crashed", "hung", "leaked"]
BAD = ["wrong", "crashed", "hung", "leaked"]
"""Outcomes that are defects."""
MAX_FINDINGS = 200
"""Maximum number of defects that are described; all are counted."""


@dataclass(frozen=True)
class Case:
    """One injected fault and its outcome."""

    fault: str
    """What was done."""
    outcome: str
    """One of `OUTCOMES`."""
    detail: str = ""
    """The error, or what was wrong."""


@dataclass
class Tally:
    """Counts of a campaign so far, as JSON stores them."""

    seed: int
    seconds: float = 0.0
    """Time spent, over all runs."""
    next: dict[str, int] = field(default_factory=dict)
    """Number of the next case, by kind of fault."""
    counts: dict[str, dict[str, int]] = field(default_factory=dict)
    """Number of cases, by kind of fault and outcome."""
    findings: list[dict[str, Any]] = field(default_factory=list)
    """The defects."""

    def add(self, kind: str, number: int, case: Case) -> None:
        """Count a case."""
        counts = self.counts.setdefault(kind, {})
        counts[case.outcome] = counts.get(case.outcome, 0) + 1
        self.next[kind] = number + 1
        if case.outcome in BAD and len(self.findings) < MAX_FINDINGS:
            self.findings.append({"case": f"{kind}:{number}", **vars(case)})

    @property
    def totals(self) -> Counter[str]:
        """Number of cases by outcome."""
        total: Counter[str] = Counter()
        for counts in self.counts.values():
            total.update(counts)
        return total

    @property
    def tried(self) -> int:
        """Number of all cases."""
        return sum(self.totals.values())

    def render(self) -> list[list[str]]:
        """Rows of a table of counts, with a row of totals."""
        rows = [
            [kind, str(sum(counts.values())), *(str(counts.get(outcome, 0)) for outcome in OUTCOMES)]
            for kind, counts in sorted(self.counts.items())
        ]
        return [*rows, ["all", str(self.tried), *(str(self.totals[outcome]) for outcome in OUTCOMES)]]
