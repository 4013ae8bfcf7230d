"""Parsers for the values of `--set NAME=VALUE`."""

from __future__ import annotations

from collections.abc import Callable, Collection

from elflow._checks import check_count, check_positive

__all__ = ["parse_choices", "parse_count", "parse_seconds"]


def parse_seconds(value: str) -> float:
    """A positive number of seconds.

    Example:
        >>> parse_seconds("45")
        45.0
    """
    try:
        number = float(value)
    except ValueError:
        raise ValueError(f"must be a number of seconds, got {value!r}") from None
    return check_positive("it", number)


def parse_count(value: str) -> int:
    """A positive integer.

    Example:
        >>> parse_count("100")
        100
    """
    try:
        number = int(value)
    except ValueError:
        raise ValueError(f"must be an integer, got {value!r}") from None
    return check_count("it", number)


def parse_choices(choices: Collection[str]) -> Callable[[str], list[str]]:
    """A parser for names separated by commas, each one of the choices.

    Example:
        >>> parse_choices(["elf", "nsf", "maf"])("maf,elf")
        ['maf', 'elf']
    """

    def parse(value: str) -> list[str]:
        names = value.split(",")
        if unknown := [name for name in names if name not in choices]:
            raise ValueError(f"must be some of {', '.join(choices)}, separated by commas, got {unknown[0]!r}")
        return names

    return parse
