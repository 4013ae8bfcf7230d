"""Values of columns from weighted points of their features: decoded frames, medians, means and modes."""

from __future__ import annotations

import numpy as np
import pandas as pd

from elflow.tabular._arrays import FloatArray, IntArray
from elflow.tabular.columns import Column
from elflow.tabular.integrals._particles import Particles
from elflow.tabular.schema import Schema

__all__ = ["cast_frame", "decode_frame", "summarize"]

N_BANDWIDTHS = 0.9
"""Factor of the bandwidth of the kernel density whose maximum is the mode of a continuous column (Silverman)."""

MEAN_TAIL = 0.01
"""Share of each tail that is moved to the rest for a mean: one point of a heavy tail may outweigh all others."""


def decode_frame(schema: Schema, z: FloatArray) -> pd.DataFrame:
    """Decode features `(N, features)` to a pandas frame with the names and dtypes of the schema."""
    series = []
    for column in schema.columns:
        *indicator, position = schema.positions(column.name)
        states = column.decode_states(z[:, indicator[0]]) if indicator else None
        series.append(column.decode(z[:, position], states))
    return pd.concat(series, axis=1)


def cast_frame(schema: Schema, frame: pd.DataFrame) -> pd.DataFrame:
    """A frame of objects in the dtypes of the schema, where its values allow that."""
    series = {}
    for column in schema.columns:
        values = frame[column.name]
        if column.dtype == "category":
            series[column.name] = pd.Series(
                pd.Categorical(values, categories=list(column.dtype_levels), ordered=column.ordered), values.index
            )
            continue
        try:
            series[column.name] = values.astype(column.dtype)
        except (TypeError, ValueError):  # missing values, which integers and booleans of NumPy cannot hold
            series[column.name] = values.infer_objects()
    return pd.DataFrame(series)


def summarize(schema: Schema, particles: Particles, method: str) -> pd.DataFrame:
    """Median, mean or mode of each column in each row, as a frame of N rows.

    Arguments:
        schema: The columns.
        particles: Weighted points of N rows.
        method: `"median"`, `"mean"` or `"mode"`.
    """
    z, weights = particles.z.numpy(), particles.weights.numpy()
    series = []
    for column in schema.columns:
        *indicator, position = schema.positions(column.name)
        flat = z[..., position].reshape(-1)
        states = column.decode_states(z[..., indicator[0]].reshape(-1)) if indicator else None
        decoded = column.decode(flat, states)
        series.append(_summarize_column(column, decoded, weights, method))
    return pd.concat(series, axis=1)


def _summarize_column(column: Column, decoded: pd.Series, weights: FloatArray, method: str) -> pd.Series:
    """Summary of the values of a column, `(N * K,)`, with weights `(N, K)`."""
    if not column.has_order or column.kind == "boolean":
        method = "mode"
    codes, values = pd.factorize(decoded, sort=column.has_order)
    codes = codes.reshape(weights.shape)
    is_present = codes >= 0
    weights = np.where(is_present, weights, 0.0)
    if method == "mode" and (column.is_discrete or column.kind in ("category", "boolean")):
        best = _find_most_frequent(codes, weights, len(values))
        return pd.Series(values[best], name=column.name)
    if method == "mean" and column.kind in ("continuous", "integer"):
        numbers = np.where(is_present, pd.to_numeric(decoded).to_numpy(np.float64).reshape(weights.shape), 0.0)
        # Values beside atoms have tails of their own: rare ones are not those of the atom.
        is_smooth = ~np.isin(numbers, column.atoms) & (not column.is_discrete)
        numbers = np.where(is_smooth, _winsorize(numbers, np.where(is_smooth, weights, 0.0), MEAN_TAIL), numbers)
        mean = (numbers * weights).sum(1) / np.maximum(weights.sum(1), 1e-300)
        if column.kind == "integer":
            mean = np.round(mean)
        return pd.Series(mean, name=column.name)
    if method == "mode":
        numbers = np.where(is_present, pd.to_numeric(decoded).to_numpy(np.float64).reshape(weights.shape), np.nan)
        best = _find_densest(numbers, weights)
    else:
        best = _find_median(codes, weights)
    return pd.Series(decoded.to_numpy().reshape(weights.shape)[np.arange(len(best)), best], name=column.name)


def _find_most_frequent(codes: IntArray, weights: FloatArray, count: int) -> IntArray:
    """Code with the largest total weight in each row, `(N,)`."""
    total = np.zeros((len(codes), count))
    rows = np.broadcast_to(np.arange(len(codes))[:, None], codes.shape)
    np.add.at(total, (rows, np.maximum(codes, 0)), weights)
    return total.argmax(1)


def _winsorize(numbers: FloatArray, weights: FloatArray, tail: float) -> FloatArray:
    """Numbers `(N, K)` with those in the two tails of each row moved to the ends of the rest.

    Example:
        >>> _winsorize(np.array([[1.0, 2.0, 3.0, 1e9]]), np.full((1, 4), 0.25), 0.3).tolist()
        [[2.0, 2.0, 3.0, 3.0]]
    """
    order = np.argsort(numbers, 1, kind="stable")
    total = np.cumsum(np.take_along_axis(weights, order, 1), 1)
    ends = []
    for probability in (tail, 1 - tail):
        index = (total < probability * total[:, -1:]).sum(1, keepdims=True).clip(max=numbers.shape[1] - 1)
        ends.append(np.take_along_axis(numbers, np.take_along_axis(order, index, 1), 1))
    return np.clip(numbers, *ends)


def _find_median(codes: IntArray, weights: FloatArray) -> IntArray:
    """Index of the point at the weighted median of each row, `(N,)`, for codes in the order of the values."""
    order = np.argsort(codes, 1, kind="stable")
    total = np.cumsum(np.take_along_axis(weights, order, 1), 1)
    median = (total < total[:, -1:] / 2).sum(1).clip(max=codes.shape[1] - 1)
    return np.take_along_axis(order, median[:, None], 1)[:, 0]


def _find_densest(numbers: FloatArray, weights: FloatArray) -> IntArray:
    """Index of the point with the highest weighted kernel density in each row, `(N,)`."""
    best = np.zeros(len(numbers), int)
    for row, (x, w) in enumerate(zip(numbers, weights, strict=True)):
        x = np.where(w > 0, x, np.nan)
        mean = np.nansum(x * w)
        spread = np.sqrt(max(np.nansum(w * (x - mean) ** 2), 0.0))
        size = 1 / np.sum(w**2) if np.sum(w**2) > 0 else 1.0
        bandwidth = N_BANDWIDTHS * spread * size**-0.2
        if not bandwidth > 0:
            best[row] = int(np.argmax(w))
            continue
        kernel = np.exp(-(((x[:, None] - x) / bandwidth) ** 2) / 2)
        best[row] = int(np.nanargmax(np.nansum(kernel * w, 1)))
    return best
