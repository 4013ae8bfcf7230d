"""Types of columns of text, inferred block by block."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import pyarrow as pa
import pyarrow.compute as pc

from elflow.io import _cast
from elflow.io._cast import Values

TIME_TYPES = {
    "time": pa.timestamp("us"),
    "fine time": pa.timestamp("ns"),
    "zoned time": pa.timestamp("us", "UTC"),
    "fine zoned time": pa.timestamp("ns", "UTC"),
}
"""Types of times, in the order in which they are tried."""
TYPES = ("integer", "float", "boolean", *TIME_TYPES)
"""Types in the order in which they are tried; what is none of them is text."""


class TypeInference:
    """Type of a column of text: the first one that fits all of its blocks.

    Arguments:
        decimal: The decimal sign of numbers.
        candidates: Types to try, of `TYPES`.

    Example:
        >>> inference = TypeInference()
        >>> for block in (["1", "2"], ["3.5", None]):
        ...     inference.add(pa.chunked_array([block]))
        >>> inference.found, inference.convert(pa.chunked_array([["1", "2"]])).to_pylist()
        ('float', [1.0, 2.0])
    """

    def __init__(self, decimal: str = ".", candidates: Iterable[str] = TYPES) -> None:
        self.decimal = decimal
        self._candidates = [name for name in TYPES if name in set(candidates)]
        self._has_codes = False
        self.n_rows, self.n_missing = 0, 0

    def add(self, text: Values) -> None:
        """Rule out the types that do not fit a block of trimmed text, null where it is missing."""
        self.n_rows, self.n_missing = self.n_rows + len(text), self.n_missing + text.null_count
        present = text.drop_null()
        if not self._candidates or not len(present):
            return
        self._candidates = [name for name in self._candidates if self._fits(name, present)]
        if "integer" in self._candidates and not self._has_codes:  # 007 is a code, not a number
            self._has_codes = pc.any(pc.match_substring_regex(present, "^0[0-9]+$")).as_py()

    def _fits(self, name: str, present: Values) -> bool:
        if name == "float" and "integer" in self._candidates and self._parses("integer", present):
            return True
        return self._parses(name, present)

    def _parses(self, name: str, present: Values) -> bool:
        try:
            self._parse(name, present.slice(0, _cast.N_TRIED))  # to fail on a long block is slow
            self._parse(name, present)
        except pa.ArrowInvalid:
            return False
        return True

    def _parse(self, name: str, text: Values) -> Values:
        parsers: dict[str, Callable[[Values], Values]] = {
            "integer": _cast._parse_integers,
            "float": lambda values: _cast._parse_floats(values, self.decimal),
            "boolean": _cast._parse_booleans,
        }
        return pc.cast(text, TIME_TYPES[name]) if name in TIME_TYPES else parsers[name](text)

    @property
    def is_empty(self) -> bool:
        """Whether all values are missing."""
        return self.n_missing == self.n_rows

    @property
    def found(self) -> str:
        """Name of the type; `"text"` if no other one fits."""
        if self.is_empty:
            return "float" if "float" in self._candidates else "text"
        if not self._candidates or (self._candidates[0] == "integer" and self._has_codes):
            return "text"
        return self._candidates[0]

    def convert(self, text: Values) -> Values:
        """Convert a block to the type."""
        if self.is_empty and self.found == "float":
            return pa.chunked_array([pa.nulls(len(text), pa.float64())])
        return text if self.found == "text" else self._parse(self.found, text)
