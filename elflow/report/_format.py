"""Numbers and text as a report prints them."""

from __future__ import annotations

import math
import re

__all__ = ["MINUS", "format_count", "format_error", "format_number", "to_printable"]

MINUS = "\N{MINUS SIGN}"


def to_printable(value: object) -> str:
    """Convert to text on one line, without characters that HTML or UTF-8 cannot represent.

    Example:
        >>> to_printable("two\\nlines")
        'two lines'
    """
    return "".join(letter if letter.isprintable() else " " for letter in str(value))


def format_number(value: float, error: float = math.nan, signed: bool = False) -> str:
    """Format a number, with its standard error if there is one; the error has two significant digits.

    Example:
        >>> format_number(1.23456, 0.012), format_number(2.5, signed=True)
        ('1.235 ± 0.012', '+2.50')
    """
    if not math.isfinite(value):
        return "undefined" if math.isnan(value) else ("∞" if value > 0 else f"{MINUS}∞")
    places = 2
    if math.isfinite(error) and error > 0:
        places = min(max(1 - math.floor(math.log10(error)), 0), 4)
    value = round(value, places) or 0.0  # never -0.00
    text = f"{value:{'+' if signed and value else ''},.{places}f}".replace("-", MINUS)
    return f"{text} ± {error:,.{places}f}" if math.isfinite(error) else text


def format_error(value: float) -> str:
    """Format a numerical error, of which mostly the exponent matters.

    Example:
        >>> format_error(1.23e-5)
        '1.2e-5'
    """
    return re.sub(r"e([+-])0", r"e\1", f"{value:.1e}")


def format_count(number: int, noun: str) -> str:
    """Format a number of things.

    Example:
        >>> format_count(1, "row"), format_count(2000, "row")
        ('1 row', '2,000 rows')
    """
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
