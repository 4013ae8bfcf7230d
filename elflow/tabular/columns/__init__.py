"""Columns of a table: their kinds, and the maps between their values and the numbers that a flow models.

`Column` in `_column.py` brings the parts together. Its kind comes from `_kinds.py`, and the treatment of numbers from
`_numbers.py`, by the tests in `_grids.py`, `_heaps.py` and `_ends.py`. `Warp` maps continuous values, `Steps` discrete
ones, and `Heaps` places rounded numbers on the axis of a `Warp`. `_arrangement.py` orders categories.
`_survey.py` summarises the columns of tables that are larger than memory.
"""

from elflow.tabular.columns._column import COLUMN_KINDS, Column

__all__ = ["COLUMN_KINDS", "Column"]
