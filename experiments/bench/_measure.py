"""Where the benchmarks keep what they measured."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from elflow._files import replacing
from experiments.framework.measure import interleaved, machine, timings

__all__ = ["RESULTS", "interleaved", "machine", "timings", "write"]

RESULTS = Path("bench")
"""Where results go unless told otherwise; those in `experiments/results` are kept on purpose."""


def write(path: Path, results: dict[str, Any]) -> None:
    """JSON with sorted keys, written whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as temporary:
        temporary.write_text(json.dumps(results, indent=2, sort_keys=True) + "\n")
