"""Treatment of numeric columns: exact numbers, intervals or cells, and their atoms."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from elflow._checks import warn_user
from elflow.tabular._arrays import FloatArray, IntArray
from elflow.tabular.columns import _grids, _kinds
from elflow.tabular.columns._ends import find_hard_ends
from elflow.tabular.columns._heaps import Heaps, are_smooth, find_codes, find_heaps
from elflow.tabular.columns._scales import robust_scale
from elflow.tabular.columns._steps import gain_from_cells
from elflow.tabular.columns._warps import Warp

__all__ = ["count_states", "describe_states", "locate_atoms", "plan_numbers"]

MAX_NUMBER = 1e300
"""Largest absolute value of a number: differences of larger ones, and their ratios to small ones, may overflow."""
MIN_FINE_STEPS = 1_000
"""Number of steps of a grid per standard deviation from which values are treated as exact numbers."""
SOFT_STEPS = 0.05
"""Distance from a bound that was inferred from frequencies, in steps, within which a warp is linear. Values beyond it
have a small density: the end may be one by chance."""
MAX_MULTIPLE = 2.0**50
"""Largest multiple of a step, beyond which floats have no digits left for parts of it."""
MAX_MERGED_SHARE = 0.01
"""Fraction of distinct values that may coincide in single precision without a warning."""


def plan_numbers(
    facts: dict[str, Any],
    present: pd.Series,
    bounds: tuple[float, float] | None,
    is_free: bool,
    is_point: bool,
    infer_bounds: bool,
) -> dict[str, Any]:
    """Fields of a numeric column: how its values are treated, and the map of those that are smooth.

    Arguments:
        facts: The fields that are known: name, kind, dtype.
        present: The values that are not missing.
        bounds: Declared bounds.
        is_free: Whether nothing is declared.
        is_point: Whether values are exact points, even on a grid.
        infer_bounds: Whether bounds and atoms are inferred.
    """
    name, kind = facts["name"], facts["kind"]
    x = present.to_numpy(np.float64)
    distinct = np.unique(x)
    if np.abs(distinct).max() > MAX_NUMBER:
        raise ValueError(
            f"column {name!r} must hold numbers up to {MAX_NUMBER:g} in absolute value, got "
            f"{distinct[np.abs(distinct).argmax()]:g}: divide it by a power of ten, or replace fill values by NaN"
        )
    if bounds is not None:
        _kinds.check_within_bounds(name, x, bounds)
    max_levels = min(_kinds.MAX_NUMERIC_LEVELS, max(1, len(x) // _kinds.MAX_NUMERIC_LEVELS))
    if kind == "continuous" and is_free and len(distinct) <= max_levels:
        return {"kind": "category", "levels": tuple(distinct.tolist())}
    step = single_digits = None
    if kind == "integer":
        has_step = len(distinct) >= _grids.MIN_LEVELS and np.abs(distinct).max() < _kinds.MAX_INTEGER_SPAN
        step = float(_kinds.find_integer_step(distinct.astype(np.int64))) if has_step else 1.0
    if kind == "continuous" and not is_point and len(x) >= 2 * _grids.MIN_LEVELS:
        step, single_digits = _find_grid(distinct, facts["dtype"])
    atoms, heaps = _find_frequent(x, step or 0.0) if infer_bounds else (np.zeros(0), None)
    rest = x[~np.isin(x, atoms)]
    found: dict[str, Any] = {"step": step, "bounds": bounds, "atoms": atoms, "single_digits": single_digits}
    limits: list[tuple[float, float] | None] = [bounds]
    if bounds is None:
        limits = _list_bounds_at_atoms(distinct, rest, atoms)
    margin = 0.0
    if step is None:
        _kinds.warn_about_fill_values(name, rest, atoms)
        candidates = [_kinds.candidate_bounds(rest, limit, infer_bounds) for limit in limits]
    else:
        is_counter = len(distinct) == len(x) == (distinct[-1] - distinct[0]) / step + 1
        multiples = np.round(rest / step)
        is_large = np.abs(multiples).max() >= MAX_MULTIPLE
        if is_counter or is_large or (heaps is None and _needs_cells(multiples.astype(np.int64))):
            return found | {"atoms": np.zeros(0)}
        _kinds.warn_about_fill_values(name, rest, atoms)
        found["dithered"] = heaps is not None or robust_scale(rest) < MIN_FINE_STEPS * step
        if bounds is None and infer_bounds:
            limits, margin = _infer_ends(multiples.astype(np.int64), step, limits)
        if found["dithered"]:
            if heaps is None:
                heaps = Heaps(1, atoms=tuple(np.round(atoms / step).astype(np.int64).tolist()))
            found |= {"period": heaps.period, "residues": heaps.residues, "residue_shares": heaps.shares}
            integers = multiples.astype(np.int64)
            rest = (heaps.find_lower(integers) + heaps.find_widths(integers) / 2) * step
            candidates = [_kinds.candidate_bounds(rest, limit, infer_bounds, step, heaps) for limit in limits]
        else:
            candidates = [_kinds.candidate_bounds(rest, limit, infer_bounds) for limit in limits]
    found["map"] = Warp.fit(rest, [bound for some in candidates for bound in some], margin)
    if not found.get("dithered"):
        _warn_about_merged_values(name, np.unique(rest), found["map"])
    return found


def _find_frequent(x: FloatArray, step: float) -> tuple[FloatArray, Heaps | None]:
    """Atoms of numbers, `(N,)`, and heaps of the others if they are on a grid; frequent heaps are no atoms."""
    atoms = _find_atoms(x, step)
    if step == 0.0 or np.abs(x).max() >= MAX_MULTIPLE * step:
        return atoms, None
    multiples = np.round(x / step).astype(np.int64)
    # Codes such as -1 or 99999 come first: as part of the heaps, their remainders would look frequent everywhere.
    codes = find_codes(multiples)
    is_code = np.isin(multiples, codes)
    rest = multiples[~np.isin(x, atoms) & ~is_code]
    heaps = None if _grids.is_smooth(rest) else find_heaps(rest)
    if heaps is None:
        return atoms, None
    # Beside values that are no heaps, any heap would be an atom.
    is_heap = heaps.contains(multiples)
    found = np.union1d(np.intersect1d(atoms, x[~is_heap]), x[is_code])
    for residue in heaps.residues:
        is_plain = (multiples % heaps.period == residue) & ~is_code
        found = np.union1d(found, _find_atoms(x[is_plain], step * heaps.period))
    rest = multiples[~np.isin(x, found)]
    heaps = replace(find_heaps(rest) or heaps, atoms=tuple(np.round(found / step).astype(np.int64).tolist()))
    return (found, heaps) if are_smooth(rest, heaps) else (atoms, None)


def _find_atoms(x: FloatArray, step: float) -> FloatArray:
    """Atoms of numbers; none if fewer than two other values would be left."""
    atoms = _grids.find_atoms(x, step)
    return atoms if len(np.setdiff1d(x, atoms)) >= 2 else np.zeros(0)


def _infer_ends(
    multiples: IntArray, step: float, limits: list[tuple[float, float] | None]
) -> tuple[list[tuple[float, float] | None], float]:
    """Candidates for bounds with hard ends of numbers on a grid, and the distance within which they are soft.

    Arguments:
        multiples: The numbers that are not atoms, as multiples of the step.
        step: Spacing of the grid.
        limits: Candidates for bounds at atoms, None without such atoms.
    """
    low, high = find_hard_ends(multiples)
    if np.isinf(high) and (np.isinf(low) or low == 0):  # a bound of 0 is a candidate anyway
        return limits, 0.0
    at_atoms = [(-np.inf, np.inf) if limit is None else limit for limit in limits]
    bounds = [
        (first if np.isfinite(first) else low * step, last if np.isfinite(last) else high * step)
        for first, last in at_atoms
    ]
    # An end that is uncertain by several steps is as soft.
    beyond = max(end for end in (multiples.min() - low, high - multiples.max(), SOFT_STEPS) if np.isfinite(end))
    margin = 0.0 if bounds == at_atoms else float(beyond) * step
    if all(np.isinf(first) for first, _ in bounds) and _may_end_at_zero(np.multiply(multiples, step, dtype=np.float64)):
        bounds += [(0.0, last) for _, last in bounds]
    return [*bounds], margin


def _list_bounds_at_atoms(
    distinct: FloatArray, rest: FloatArray, atoms: FloatArray
) -> list[tuple[float, float] | None]:
    """Candidates for bounds at atoms, with 0, or 1 for shares, as the other bound; None without such atoms."""
    bounds = _kinds.bounds_at_atoms(distinct, rest, atoms)
    if bounds is None:
        return [None]
    low, high = bounds
    found: list[tuple[float, float] | None] = [bounds]
    if low == -np.inf and distinct[0] >= 0 and _may_end_at_zero(rest):
        found.append((0.0, high))
    if high == np.inf and low >= 0 and distinct[-1] <= 1:
        found.append((low, 1.0))
    return found


def _may_end_at_zero(x: FloatArray) -> bool:
    """Whether 0 may be the lower bound of numbers: none is negative, and they are not far away."""
    return bool(0 <= x.min() <= _kinds.MAX_BOUND_DISTANCE * robust_scale(x))


def _find_grid(distinct: FloatArray, dtype: str) -> tuple[float | None, int | None]:
    """Spacing of the grid of distinct values, and digits of doubles that are numbers of single precision."""
    step = _grids.find_decimal_step(distinct, dtype)
    if step is not None or dtype.lower() != "float64":
        return step, None
    if (digits := _grids.find_single_digits(distinct)) is not None:
        step = _grids.find_decimal_step(distinct, "float32")
        return step, None if step is None else digits
    return _grids.find_lattice_step(distinct), None


def _needs_cells(multiples: IntArray) -> bool:
    """Whether numbers on a grid are not those of a rounded smooth density, and their frequencies predict new numbers.

    Measurements with four significant digits, for instance, have more ties where they have fewer decimals. This is not
    smooth, but most of them are unique: frequencies say nothing about the next one.
    """
    return not _grids.is_smooth(multiples) and gain_from_cells(multiples) > _grids.MAX_LOST_NATS


def _warn_about_merged_values(name: str, distinct: FloatArray, warp: Warp) -> None:
    """Warn if distinct values coincide in single precision, in which flows compute."""
    n_merged = len(distinct) - len(np.unique(warp(distinct)[0].astype(np.float32)))
    if n_merged > max(2, MAX_MERGED_SHARE * len(distinct)):
        warn_user(
            f"column {name!r} has {n_merged:,} of {len(distinct):,} distinct values that coincide in single precision: "
            "subtract a constant, or split the column into a coarse and a fine part"
        )


def count_states(present: pd.Series, atoms: FloatArray, n_missing: int) -> IntArray:
    """Numbers of rows at each atom, at any other value, and without a value.

    Arguments:
        present: The values that are not missing.
        atoms: The atoms, in increasing order.
        n_missing: Number of missing values.
    """
    counts = []
    if len(atoms):
        x = present.to_numpy(np.float64)
        counts = [int((x == atom).sum()) for atom in atoms]
    return np.array([*counts, len(present) - sum(counts), n_missing], np.int64)


def locate_atoms(present: pd.Series, atoms: FloatArray) -> int:
    """Number of atoms below the median of the other values."""
    if not len(atoms):
        return 0
    x = present.to_numpy(np.float64)
    return int((atoms < np.quantile(x[~np.isin(x, atoms)], 0.5)).sum())


def describe_states(counts: IntArray, atoms: FloatArray, position: int, model_missing: bool) -> dict[str, Any]:
    """Fields of a column that describe its states: atoms, and the fractions of all states and of missing values.

    Arguments:
        counts: Numbers of rows in each state: see `count_states`.
        atoms: The atoms, in increasing order.
        position: Number of atoms below the other values.
        model_missing: Whether missing values are a state.
    """
    *of_atoms, n_others, n_missing = counts.tolist()
    states = [*of_atoms[:position], n_others, *of_atoms[position:], *([n_missing] if model_missing else [])]
    if len(states) == 1:
        return {}
    shares = (np.array(states) + 0.5) / (sum(states) + 0.5 * len(states))
    return {
        "atoms": tuple(float(atom) for atom in atoms),
        "shares": tuple(shares.tolist()),
        "position": position,
        "missing": float(shares[-1]) if model_missing else 0.0,
    }
