"""Hints about columns that a density should not have: functions of others, constant, identifiers, or cyclic times."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import pandas as pd

from elflow._checks import join_names, warn_user
from elflow.tabular.columns import Column
from elflow.tabular.columns._identifiers import is_integer_identifier, is_row_number
from elflow.tabular.hints._cycles import find_cycles
from elflow.tabular.hints._dependences import choose_tested_rows, find_linear_dependences, find_products
from elflow.tabular.hints._functions import find_functions
from elflow.tabular.schema import Schema

__all__ = ["warn_about_columns"]

MIN_CONSTANT_ROWS = 10
"""Number of rows from which a column with one value is constant."""

MAX_SPELLINGS_SHOWN = 3
"""Maximum number of categories of which several spellings are listed."""


def warn_about_columns(
    schema: Schema, frame: pd.DataFrame, declared: Collection[str] = (), row_numbers: Collection[str] | None = None
) -> None:
    """Warn about columns that number or identify the rows, are constant, functions of others, or have cycles.

    Several spellings of a category are named, too.

    Arguments:
        schema: The columns.
        frame: The table.
        declared: Names of columns whose meaning is known: they do not number or identify the rows.
        row_numbers: Names of columns that number the rows, if the table has only some rows of a larger one.
    """
    numbers = [column for column in schema.columns if column.kind in ("continuous", "integer")]
    _warn_about_identifiers(frame[[column.name for column in numbers if column.name not in declared]], row_numbers)
    constant = [column.name for column in schema.columns if _is_constant(frame[column.name])]
    if len(constant) == 1:
        warn_user(f"column {constant[0]!r} is constant and adds nothing to the density: drop it")
    elif constant:
        warn_user(f"columns {join_names(constant)} are constant and add nothing to the density: drop them")
    _warn_about_functions(schema, frame, numbers)
    for column in schema.columns:
        _warn_about_spellings(column)
    for column in (column for column in schema.columns if column.kind == "datetime"):
        step = pd.Timedelta(int(column.step or 1), unit=column.unit)
        if cycles := find_cycles(column.parse_times(choose_tested_rows(frame)[column.name]), step):
            warn_user(
                f"column {column.name!r} depends on the {' and the '.join(cycles)}, which samples do not keep, since a "
                "datetime is one number: replace it by a column for the date or the week, and one for each of these"
            )


def _warn_about_identifiers(frame: pd.DataFrame, row_numbers: Collection[str] | None) -> None:
    for name in frame.columns:
        if is_row_number(frame[name]) if row_numbers is None else name in row_numbers:
            warn_user(f"column {name!r} numbers the rows: drop it unless it has another meaning")
        elif is_integer_identifier(frame[name]):
            warn_user(
                f"column {name!r} has a different integer in each row, and seems to identify rows: drop it (--drop "
                f"{name}), or declare columns={{{name!r}: 'integer'}} (--kind {name}=integer) if it is a measurement"
            )


def _warn_about_functions(schema: Schema, frame: pd.DataFrame, numbers: Sequence[Column]) -> None:
    times = [column for column in schema.columns if column.kind == "datetime"]
    linear = find_linear_dependences(frame, [*numbers, *times])
    for dependence in linear:
        warn_user(
            f"column {dependence.name!r} is a linear function of {join_names(dependence.others)}, up to rounding: it "
            "adds nothing to the density but the rounding, which may dominate the scores. Drop one of these columns"
        )
    known = {dependence.name for dependence in linear}
    # A few prices are categories, but factors of a total all the same.
    factors = [column for column in schema.columns if column in numbers or _has_numeric_levels(column)]
    products = find_products(frame, [column for column in factors if column.name not in known])
    for dependence in products:
        warn_user(
            f"column {dependence.name!r} is a product of powers of {join_names(dependence.others)}, up to rounding, "
            f"which samples keep only roughly: drop {dependence.name!r}, and compute it for samples"
        )
    known |= {dependence.name for dependence in products}
    for dependence in find_functions(frame, [column for column in schema.columns if column.name not in known]):
        warn_user(
            f"column {dependence.name!r} is determined by {join_names(dependence.others)}, which samples do not always "
            f"keep: drop {dependence.name!r}, and add it to samples from {join_names(dependence.others)}"
        )


def _has_numeric_levels(column: Column) -> bool:
    """Whether all categories of a column are numbers."""
    levels = column.levels or ()
    return column.kind == "category" and all(isinstance(level, int | float) for level in levels)


def _warn_about_spellings(column: Column) -> None:
    """Warn about categories that differ only in upper and lower case, or in white space."""
    spellings: dict[str, list[str]] = {}
    for level in column.levels or ():
        if isinstance(level, str):
            spellings.setdefault(" ".join(level.casefold().split()), []).append(level)
    if several := [found for found in spellings.values() if len(found) > 1]:
        shown = "; ".join(join_names(found) for found in several[:MAX_SPELLINGS_SHOWN])
        warn_user(
            f"column {column.name!r} has categories that differ only in case or white space: {shown}. Write them in "
            "the same way if they mean the same"
        )


def _is_constant(values: pd.Series) -> bool:
    """Whether all rows have the same value, which is not missing."""
    return len(values) >= MIN_CONSTANT_ROWS and not values.isna().any() and bool((values == values.iloc[0]).all())
