"""Warnings and errors about columns of a table: values outside their bounds, identifiers, missing values."""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd

from elflow._checks import warn_user
from elflow.tabular._text import shorten
from elflow.tabular.columns._column import Column

__all__ = ["OutsideBoundsWarning", "check_no_missing", "warn_about_bounds", "warn_about_identifiers"]


class OutsideBoundsWarning(UserWarning):
    """Warning about values outside the declared bounds of a column, whose log-density is minus infinity."""


def warn_about_bounds(column: Column, outside: pd.Series, first_row: int) -> None:
    """Warn about values outside the declared bounds of a column.

    Arguments:
        column: The column.
        outside: Its values outside the bounds, by their positions in the table.
        first_row: Number of the table's first row, if it is a part of a larger one.
    """
    values = f"{len(outside):,} value{'' if len(outside) == 1 else 's'}"
    warn_user(
        f"column {column.name!r} has {values} outside its declared bounds {column.bounds}, first "
        f"{outside.iloc[0]:g} in row {first_row + outside.index[0]}: the density of such rows is zero",
        OutsideBoundsWarning,
    )


def warn_about_identifiers(ignored: pd.DataFrame) -> None:
    """Warn about columns that are left out; some may hold numbers that were read as text."""
    names = list(ignored.columns)
    columns, are = ("column", "is") if len(names) == 1 else ("columns", "are")
    declared = ", ".join(f"{name!r}: 'category'" for name in names)
    warn_user(
        f"{columns} {', '.join(map(repr, names))} {are} left out, since most values are unique (identifiers or free "
        f"text): to model them, declare columns={{{declared}}} (--kind {names[0]}=category)"
        + "".join(_describe_numbers_as_text(ignored[name].dropna()) for name in names)
    )


def _describe_numbers_as_text(values: pd.Series) -> str:
    """Sentence about a column of text most of which are numbers; empty for other columns."""
    is_number = pd.to_numeric(values, errors="coerce").notna()
    if is_number.mean() < 0.5:
        return ""
    if is_number.all():
        return f". Column {values.name!r} holds numbers as text: convert it with .astype(float)"
    other = shorten(str(values[~is_number].iloc[0]), 30)
    return (
        f". Column {values.name!r} holds numbers as text, but for values such as {other!r}: make these missing "
        f"(--na {other})"
    )


def check_no_missing(counts: Mapping[str, int] | pd.Series, fitted: bool = False) -> None:
    """Raise an error that names the columns with missing values, if there are any."""
    if columns := ", ".join(f"{name!r} ({count})" for name, count in counts.items() if count > 0):
        if fitted:
            where = ", where the fitted table had none"
            remedy = "fill them in with impute (elflow impute), drop these rows, or score other columns with marginal"
        else:
            where = ""
            remedy = "fill them in or drop them, or model them with missing='model' (--missing model)"
        raise ValueError(f"the table must not have missing values (NaN), got some in {columns}{where}: {remedy}")
