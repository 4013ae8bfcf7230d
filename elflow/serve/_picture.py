"""Density of one or two columns given conditions, at points that a page can draw.

A few samples given the conditions show where the density is, and points are placed there: on a line, or on a mesh that
follows the relation of two columns, so that a narrow ridge is resolved as well as a wide one. At each point the density
is computed by `FlowDensity.marginal`, with all columns without a condition integrated out.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from elflow.serve._answers import read_context
from elflow.serve._requests import DensityRequest, parse_given
from elflow.serve._tables import to_rows
from elflow.serve.limits import Deadline, Limits, Refusal
from elflow.serve.models import ServedModel
from elflow.tabular import Column

__all__ = ["draw_density"]

MAX_BARS = 40
"""Maximum number of values of a column that are shown as bars."""
MAX_LINES = 12
"""Maximum number of categories that are shown beside numbers, and on each side of a table."""
BLOCK_POINTS = 640
"""Number of points of a picture that are computed between two looks at the deadline: all of a quick one."""
MARGIN = 0.25
"""Fraction of the range of the samples by which the points extend beyond it on each side."""


class Precision(NamedTuple):
    """Numbers of points of a picture."""

    samples: int
    line: int
    """Points of a line."""
    mesh: int
    """Points of each side of a mesh."""
    line_points: int
    """Points of integration for each point of a line."""
    mesh_points: int
    """Points of integration for each point of a mesh."""


PRECISIONS = {"quick": Precision(48, 48, 18, 32, 8), "fine": Precision(400, 128, 36, 512, 64)}


class Query(NamedTuple):
    """A question about the density of some columns."""

    model: ServedModel
    given: dict[Hashable, Any]
    context: pd.DataFrame | None
    size: Precision
    deadline: Deadline

    def score(self, frame: pd.DataFrame, n_points: int) -> tuple[np.ndarray, float]:
        """Densities of rows of some columns, and their typical relative error."""
        marginal = self.model.density.marginal(list(frame.columns), self.given)
        parts = []
        for start in range(0, len(frame), BLOCK_POINTS):
            self.deadline.check()
            block = frame[start : start + BLOCK_POINTS]
            context = None if self.context is None else self.context.iloc[np.zeros(len(block), int)]
            parts.append(marginal.score_samples(block, context, n_points, return_info=True, refine=False))
        log_density = np.concatenate([found for found, _ in parts])
        sizes = np.concatenate([info.effective_sample_size for _, info in parts])
        density = np.exp(np.minimum(log_density, 700.0))
        weight = density / max(float(density.sum()), 1e-300)
        error = float((weight / np.sqrt(np.maximum(sizes, 1.0))).sum())
        return density, error


def draw_density(
    model: ServedModel, limits: Limits, request: DensityRequest, deadline: Deadline | None = None
) -> dict[str, Any]:
    """Density of one or two columns, for JSON.

    Returns:
        `grid` is the kind of picture. A `line` has `x`, `density`, and `atoms`, values with a probability; `bars` have
        `x` and `probability`; a `mesh` has `x`, and for each of them `y` and `density`; `lines` have `x`, and for each
        of the `levels` a `density`, `probability` in all; a `table` has `x`, `y` and `probability`. All have `samples`,
        `error`, the typical relative error, `mass`: what the probabilities and densities added up to, before they
        were divided by it, which differs from 1 by the error of the probability of the conditions, and `hidden`: the
        number of categories that are not shown, since there are too many. `mass` is then at least 1.
    """
    query = _read_query(model, limits, request, deadline)
    samples = _draw_samples(query, request.columns)
    columns = [model.schema.column(name) for name in request.columns]
    columns.sort(key=lambda column: column.levels is not None)  # numbers first
    picture = _normalize(_draw_columns(query, columns, samples))
    return {**picture, "columns": [column.name for column in columns], "samples": to_rows(samples)}


def _read_query(model: ServedModel, limits: Limits, request: DensityRequest, deadline: Deadline | None) -> Query:
    """Check a request and convert its conditions."""
    names = request.columns
    if unknown := [name for name in names if name not in model.schema.names]:
        raise Refusal(422, f"columns must be of {model.schema.names}, got {unknown[0]!r:.200}")
    if len(set(names)) < len(names):
        raise Refusal(422, f"columns must be different, got {names[0]!r:.200} twice")
    given = parse_given(request.given, model.schema.columns)
    if both := [name for name in names if name in given]:
        raise Refusal(422, f"given must not have a condition on {both[0]!r:.200}, one of the columns")
    context = read_context(model, request.context, limits)
    if context is not None and len(context) > 1:
        raise Refusal(422, f"context must have one row, got {len(context)}")
    return Query(model, given, context, PRECISIONS[request.precision], deadline or Deadline(limits))


def _draw_samples(query: Query, names: Sequence[str]) -> pd.DataFrame:
    """Rows given the conditions in which none of these columns is missing."""
    blocks = query.model.density.iter_given_samples(query.size.samples, query.given, query.context, 0)
    samples = pd.concat([frame for frame, _ in blocks], ignore_index=True)[list(names)].dropna().reset_index(drop=True)
    if not len(samples):
        raise Refusal(422, "given must allow values of the columns, got conditions under which they are missing")
    return samples


def _draw_columns(query: Query, columns: Sequence[Column], samples: pd.DataFrame) -> dict[str, Any]:
    """The kind of picture that suits one or two columns, of which numbers come first."""
    has_levels = [column.levels is not None for column in columns]
    if len(columns) == 1:
        draw = _draw_levels if has_levels[0] else _draw_line
        return draw(query, columns[0], samples)
    first, second = columns
    if all(has_levels):
        return _draw_table(query, first, second, samples)
    if any(has_levels):
        return _draw_lines(query, first, second, samples)
    return _draw_mesh(query, first, second, samples)


def _normalize(picture: dict[str, Any]) -> dict[str, Any]:
    """Divide densities and probabilities by their sum."""
    hidden = picture.get("hidden", 0)
    # The categories that are shown do not add up to 1 if others are hidden.
    total = max(picture["mass"], 1.0) if hidden else picture["mass"]
    mass = max(total, 1e-300)
    for key in ("density", "probability"):
        if key in picture:
            picture[key] = (np.asarray(picture[key]) / mass).tolist()
    for atom in picture.get("atoms", ()):
        atom["probability"] /= mass
    return {**picture, "hidden": hidden, "mass": total}


def _choose_levels(query: Query, column: Column, samples: pd.DataFrame, count: int) -> tuple[list[Any], int]:
    """The most common categories, in their usual order, and the number of all others.

    Few samples given the conditions say little about each of many categories: frequencies in all rows count as well.
    """
    levels = list(column.levels or ())
    if len(levels) <= count:
        return levels, 0
    shares = column.encode(pd.Series(levels, dtype=object))[1]  # the width of a cell is a frequency
    if query.given or query.context is not None:
        found = np.bincount(column.to_integers(samples[column.name]), minlength=len(levels))
        shares = shares + found[: len(levels)] / len(samples)
    chosen = np.sort(np.argsort(-shares, kind="stable")[:count])
    return [levels[i] for i in chosen], len(levels) - count


def _draw_levels(query: Query, column: Column, samples: pd.DataFrame) -> dict[str, Any]:
    """Probabilities of categories."""
    levels, hidden = _choose_levels(query, column, samples, MAX_BARS)
    frame = pd.DataFrame({column.name: pd.Series(levels, dtype=object)})
    probability, error = query.score(frame, query.size.line_points)
    facts = {"grid": "bars", "x": levels, "probability": probability.tolist()}
    return facts | {"mass": float(probability.sum()), "error": error, "hidden": hidden}


def _draw_line(query: Query, column: Column, samples: pd.DataFrame) -> dict[str, Any]:
    """Density along numbers or times; bars for a few whole numbers."""
    values = samples[column.name]
    if (bars := _list_values(column, values)) is not None:
        density, error = query.score(pd.DataFrame({column.name: bars}), query.size.line_points)
        probability = density * (column.step or 1.0) if column.kind == "continuous" else density
        x, mass = _to_json(bars), float(probability.sum())
        return {"grid": "bars", "x": x, "probability": probability.tolist(), "mass": mass, "error": error}
    nodes = _snap(column, _place(_to_numbers(values), query.size.line))
    x = _from_numbers(values, nodes)
    density, error = query.score(pd.DataFrame({column.name: x}), query.size.line_points)
    density = density / _measure_cell(column)
    atoms = pd.DataFrame({column.name: pd.Series(column.atoms, dtype=np.float64)})
    shares = query.score(atoms, query.size.line_points)[0] if len(atoms) else np.zeros(0)
    return {
        "grid": "line",
        "x": _to_json(x),
        "density": density.tolist(),
        "atoms": [{"value": a, "probability": p} for a, p in zip(column.atoms, shares.tolist(), strict=True)],
        "mass": float(np.trapezoid(density, nodes) + shares.sum()),
        "error": error,
    }


def _draw_lines(query: Query, number: Column, category: Column, samples: pd.DataFrame) -> dict[str, Any]:
    """Density along numbers for each category, times the probability of the category."""
    levels, hidden = _choose_levels(query, category, samples, MAX_LINES)
    values = samples[number.name]
    nodes = _snap(number, _place(_to_numbers(values), max(16, query.size.line // 2)))
    x = _from_numbers(values, nodes)
    frame = pd.DataFrame(
        {
            number.name: pd.concat([x] * len(levels), ignore_index=True),
            category.name: pd.Series([level for level in levels for _ in range(len(x))], dtype=object),
        }
    )
    density, error = query.score(frame, max(8, query.size.line_points // 2))
    density = density.reshape(len(levels), len(x)) / _measure_cell(number)
    masses = np.trapezoid(density, nodes, axis=1)
    return {
        "grid": "lines",
        "x": _to_json(x),
        "levels": levels,
        "density": density.tolist(),
        "probability": masses.tolist(),
        "mass": float(masses.sum()),
        "error": error,
        "hidden": hidden,
    }


def _draw_table(query: Query, first: Column, second: Column, samples: pd.DataFrame) -> dict[str, Any]:
    """Probabilities of pairs of categories."""
    (x, left), (y, right) = (_choose_levels(query, column, samples, MAX_LINES) for column in (first, second))
    frame = pd.DataFrame(
        {
            first.name: pd.Series([a for a in x for _ in y], dtype=object),
            second.name: pd.Series([b for _ in x for b in y], dtype=object),
        }
    )
    probability, error = query.score(frame, query.size.line_points)
    table = probability.reshape(len(x), len(y)).tolist()
    facts = {"grid": "table", "x": x, "y": y, "probability": table}
    return facts | {"mass": float(probability.sum()), "error": error, "hidden": left + right}


def _draw_mesh(query: Query, first: Column, second: Column, samples: pd.DataFrame) -> dict[str, Any]:
    """Density on a mesh: numbers of the first column, and for each of them numbers about the usual second ones."""
    a, b = _to_numbers(samples[first.name]), _to_numbers(samples[second.name])
    x = _snap(first, _place(a, query.size.mesh))
    centre = _follow_ridge(a, b)
    spread = _place(b - centre(a), query.size.mesh)
    y = np.stack([_limit(second, centre(at) + spread) for at in x])  # (x, y)
    if second.kind == "integer":
        y = np.round(y / (second.step or 1.0)) * (second.step or 1.0)
    frame = pd.DataFrame(
        {
            first.name: _from_numbers(samples[first.name], np.repeat(x, y.shape[1])),
            second.name: _from_numbers(samples[second.name], y.reshape(-1)),
        }
    )
    density, error = query.score(frame, query.size.mesh_points)
    density = density.reshape(y.shape) / (_measure_cell(first) * _measure_cell(second))
    mass = float(np.trapezoid(np.trapezoid(density, y, axis=1), x))
    rows = to_rows(frame)
    return {
        "grid": "mesh",
        "x": [rows[i * y.shape[1]][first.name] for i in range(len(x))],
        "y": [[rows[i * y.shape[1] + j][second.name] for j in range(y.shape[1])] for i in range(len(x))],
        "density": density.tolist(),
        "mass": mass,
        "error": error,
    }


def _follow_ridge(a: np.ndarray, b: np.ndarray, n_bins: int = 8) -> Callable[[np.ndarray], np.ndarray]:
    """Function that interpolates the medians of b in bins of a, each with an equal number of samples."""
    order = np.argsort(a, kind="stable")
    bins = [part for part in np.array_split(order, n_bins) if len(part)]
    at, middle = (np.array([np.median(values[part]) for part in bins]) for values in (a, b))
    at, index = np.unique(at, return_index=True)
    middle = middle[index]
    if len(at) < 2:
        return lambda x: np.full(np.shape(x), middle[0])
    slopes = [(middle[1] - middle[0]) / (at[1] - at[0]), (middle[-1] - middle[-2]) / (at[-1] - at[-2])]

    def interpolate(x: np.ndarray) -> np.ndarray:
        """Linear between the medians and beyond them."""
        inside = np.interp(x, at, middle)
        below, above = np.minimum(x - at[0], 0.0), np.maximum(x - at[-1], 0.0)
        return inside + slopes[0] * below + slopes[1] * above

    return interpolate


def _place(values: np.ndarray, count: int) -> np.ndarray:
    """Increasing points that are dense where values are: half of them by quantiles, half of them equally spaced."""
    low, high = np.quantile(values, [0.005, 0.995])
    span = max(high - low, 1e-9 * max(1.0, abs(low)))
    ends = low - MARGIN * span, high + MARGIN * span
    inside = np.quantile(values, np.linspace(0.005, 0.995, count - 2))
    by_quantiles = np.concatenate([[ends[0]], inside, [ends[1]]])
    nodes = 0.4 * by_quantiles + 0.6 * np.linspace(*ends, count)
    return np.maximum.accumulate(nodes)


def _snap(column: Column, nodes: np.ndarray) -> np.ndarray:
    """Points within the declared bounds, on the grid of whole numbers if there is one, and each once."""
    nodes = _limit(column, nodes)
    if column.kind == "integer":
        nodes = np.round(nodes / (column.step or 1.0)) * (column.step or 1.0)
    elif column.kind == "continuous" and column.step is not None:
        nodes = np.round(nodes / column.step) * column.step
        atoms = np.array(column.atoms)
        nodes = nodes[~np.isin(np.round(nodes / column.step), np.round(atoms / column.step))]
    return np.unique(nodes)


def _limit(column: Column, nodes: np.ndarray) -> np.ndarray:
    return nodes if column.bounds is None else np.clip(nodes, *column.bounds)


def _list_values(column: Column, values: pd.Series) -> pd.Series | None:
    """All values between the smallest and the largest sample, if these are few numbers on a grid."""
    if column.kind not in ("integer", "continuous") or column.step is None or column.atoms:
        return None
    numbers = values.to_numpy(np.float64) / column.step
    low, high = int(np.floor(numbers.min())), int(np.ceil(numbers.max()))
    if high - low >= MAX_BARS:
        return None
    margin = max(1, (high - low) // 4)
    found = _limit(column, np.arange(low - margin, high + margin + 1) * column.step)
    return pd.Series(np.unique(found))


def _to_numbers(values: pd.Series) -> np.ndarray:
    """Numbers, or times as seconds."""
    if pd.api.types.is_datetime64_any_dtype(values.dtype):
        zone = getattr(values.dtype, "tz", None)
        plain = values.dt.tz_convert("UTC").dt.tz_localize(None) if zone is not None else values
        return plain.astype("datetime64[ns]").astype("int64").to_numpy() / 1e9
    return values.to_numpy(np.float64)


def _from_numbers(like: pd.Series, numbers: np.ndarray) -> pd.Series:
    """Numbers as values; times have the dtype of `like`."""
    if not pd.api.types.is_datetime64_any_dtype(like.dtype):
        return pd.Series(numbers)
    times = pd.Series((np.round(numbers) * 1e9).astype("int64")).astype("datetime64[ns]")
    zone = getattr(like.dtype, "tz", None)
    return times.astype(like.dtype) if zone is None else times.dt.tz_localize("UTC").astype(like.dtype)


def _to_json(values: pd.Series) -> list[Any]:
    """Values as in the rows of an answer."""
    return [row["x"] for row in to_rows(pd.DataFrame({"x": values}))]


def _measure_cell(column: Column) -> float:
    """Size of the cell whose probability a score is, in the units of `_to_numbers`; 1 for a density."""
    if column.kind == "integer":
        return column.step or 1.0
    if column.kind == "datetime":
        seconds = pd.Timedelta(int(column.step or 1), unit=column.unit).total_seconds()
        return max(seconds, 1e-9)
    return 1.0
