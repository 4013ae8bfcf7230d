"""Fault injection: damaged files, killed commands and full disks, and counts of what became of each.

    python -m experiments faults --minutes 60

Every case follows from the seed and its number, so that `--case model-bytes:1234` repeats one. The outcomes:

* `refused`: an error that names the file and the reason.
* `harmless`: the same result as without the fault.
* `wrong`: another result without an error. This must never happen.
* `crashed`: an error of another kind, or the end of the process.
* `hung`: no result within 30 seconds of processor time, or ten minutes.
* `leaked`: temporary files were left, or far more memory was used than the file justifies.
"""

from __future__ import annotations

from experiments.faults.campaign import KINDS, run_campaign

__all__ = ["KINDS", "run_campaign"]
