"""Parsers for the values of `--set NAME=VALUE`."""

from __future__ import annotations

from collections.abc import Callable, Collection

from elflow._checks import check_count, check_positive

__all__ = ["parse_choice", "parse_choices", "parse_count", "parse_positive", "parse_seconds", "parse_sizes"]


def parse_seconds(value: str) -> float:
    """A positive number of seconds.

    Example:
        >>> parse_seconds("45")
        45.0
    """
    return parse_positive(value, "a number of seconds")


def parse_positive(value: str, what: str = "a number") -> float:
    """A positive number.

    Example:
        >>> parse_positive("1e-3")
        0.001
    """
    try:
        number = float(value)
    except ValueError:
        raise ValueError(f"must be {what}, got {value!r}") from None
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


def parse_choice(choices: Collection[str]) -> Callable[[str], str]:
    """A parser for one of the choices.

    Example:
        >>> parse_choice(["adamw", "muon"])("muon")
        'muon'
    """

    def parse(value: str) -> str:
        if value not in choices:
            raise ValueError(f"must be one of {', '.join(choices)}, got {value!r}")
        return value

    return parse


def parse_sizes(names: Collection[str]) -> Callable[[str], dict[str, int]]:
    """A parser for positive integers with names, separated by commas.

    Example:
        >>> parse_sizes(["channels", "blocks"])("channels=24,blocks=3")
        {'channels': 24, 'blocks': 3}
    """

    def parse(value: str) -> dict[str, int]:
        sizes = {}
        for item in value.split(","):
            name, _, number = item.partition("=")
            if name not in names:
                raise ValueError(f"must be some of {', '.join(names)}, each with a number as NAME=N, got {item!r}")
            sizes[name] = parse_count(number)
        return sizes

    return parse


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
