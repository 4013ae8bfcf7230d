"""Damaged tables: their rows are scored as before, or refused with a reason."""

from __future__ import annotations

import random
import warnings
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pandas as pd

from elflow import FlowDensity
from elflow.io import read_table, scan_table
from experiments.faults.mutations import mutate_bytes
from experiments.faults.outcomes import Case
from experiments.faults.victims import Victims

__all__ = ["damage_table", "judge_values"]

CLEAR = (ValueError, TypeError, OSError)
"""Errors that the command line prints on one line."""


def damage_table(rng: random.Random, victims: Victims) -> Case:
    """A table with some other bytes, read and scored. Rows in lines before the damage must score as before."""
    table, density = victims.table, victims.density
    with TemporaryDirectory() as folder:
        path = Path(folder, rng.choice(["data.csv", "data.csv", "data.tsv", "data.parquet"]))
        if path.suffix == ".parquet":
            table.to_parquet(path)
        else:
            table.to_csv(path, index=False, sep="\t" if path.suffix == ".tsv" else ",")
        data = path.read_bytes()
        fault, damaged = mutate_bytes(rng, data)
        path.write_bytes(damaged)
        fault = f"{path.name}: {fault}"
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                blocks = scan_table(path, density.schema_.columns, 1000)
                scores = np.concatenate([density.score_samples(block) for block in blocks])
        except CLEAR as error:
            return Case(fault, "refused", str(error)[:200])
        except Exception as error:
            return Case(fault, "crashed", f"{type(error).__name__}: {error}"[:300])
    if np.isnan(scores).any():
        return Case(fault, "wrong", "NaN")
    expected = density.score_samples(table)
    same = _count_unchanged(data, damaged) if path.suffix != ".parquet" else 0
    same = min(same, len(scores))
    if not np.allclose(scores[:same], expected[:same], rtol=1e-9):
        return Case(
            fault, "wrong", f"rows before the damage changed: {np.flatnonzero(scores[:same] != expected[:same])[:5]}"
        )
    if path.suffix == ".parquet" and len(scores) == len(expected) and not np.array_equal(scores, expected):
        # Parquet has no checksum by default: a changed value is another table.
        return Case(fault, "harmless", "another table")
    return Case(fault, "harmless")


def _count_unchanged(data: bytes, damaged: bytes) -> int:
    """Number of rows of a text file before the first line that differs."""
    lines, others = data.split(b"\n"), damaged.split(b"\n")
    same = 0
    while same < min(len(lines), len(others)) and lines[same] == others[same]:
        same += 1
    return max(0, same - 1)  # without the header


def judge_values(frame: pd.DataFrame) -> Case:
    """Write a table of any values as CSV, read it, infer its columns and encode it."""
    fault = ", ".join(f"{name}: {str(values.iloc[0])[:20]}" for name, values in frame.items())
    with TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        path = Path(folder, "data.csv")
        try:
            frame.to_csv(path, index=False)
            read = read_table(path)
            schema = FlowDensity(missing="model").fit_schema(read).schema_
            cells = schema.encode(read)
            repr(schema)
        except CLEAR as error:
            return Case(fault, "refused", str(error)[:200])
        except Exception as error:
            return Case(fault, "crashed", f"{type(error).__name__}: {error}"[:300])
    if any(np.isnan(part).any() for part in cells):
        return Case(fault, "wrong", "NaN in encoded rows")
    return Case(fault, "harmless")
