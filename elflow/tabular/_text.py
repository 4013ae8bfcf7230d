"""Shortening of text to one line."""

from __future__ import annotations

__all__ = ["shorten"]


def shorten(text: str, width: int) -> str:
    """Put text on one line of at most `width` characters.

    Example:
        >>> shorten("one of many words", 10)
        'one of ...'
    """
    text = " ".join(text.split())
    return text if len(text) <= width else f"{text[: width - 3]}..."
