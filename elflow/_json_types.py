"""Types of JSON values, checked against the annotations of Python: dataclasses, typed dictionaries and arguments."""

from __future__ import annotations

import inspect
import json
import math
import types
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from typing import Any, Literal, NoReturn, Union, get_args, get_origin, get_type_hints, is_typeddict

import numpy as np

__all__ = ["check_arguments", "check_json"]

MAX_TEXT = 60
"""Maximum number of characters of a value in an error."""


def check_json(value: object, hint: Any, path: str) -> None:
    """Raise an error that names the path of the first entry of a JSON value whose type is wrong.

    Arguments:
        value: A value from JSON: a number, a string, a boolean, None, or a list or dictionary of these.
        hint: The type that it must have, an annotation of Python. Sequences and arrays are lists in JSON, dataclasses
            and typed dictionaries are dictionaries of their fields. `Any` is any value.
        path: The name of the value in errors.

    Example:
        >>> check_json({"sizes": [1, 2, "3"]}, dict[str, list[int]], "config")
        Traceback (most recent call last):
        ...
        ValueError: config.sizes[2] must be an integer, got "3"
    """
    origin, arguments = get_origin(hint), get_args(hint)
    if hint is Any or hint is object:
        return
    if origin in (Union, types.UnionType):
        _check_union(value, hint, path)
    elif origin is Literal:
        if value not in arguments:
            _refuse(value, hint, path)
    elif is_dataclass(hint) or is_typeddict(hint):
        _check_fields(value, hint, path)
    elif hint in _SCALARS:
        if not _SCALARS[hint][0](value):
            _refuse(value, hint, path)
    elif (item := _find_item(hint)) is not None:
        if not isinstance(value, list):
            _refuse(value, hint, path)
        _check_items(value, item, path)
    elif isinstance(origin, type) and issubclass(origin, Mapping):
        if not isinstance(value, dict):
            _refuse(value, hint, path)
        for key, entry in value.items():
            check_json(entry, arguments[1] if arguments else Any, f"{path}.{_shorten(key)}")
    else:  # a type that JSON cannot hold
        _refuse(value, hint, path)


def check_arguments(
    function: Callable[..., Any], values: object, path: str, more: Iterable[Callable[..., Any]] = ()
) -> None:
    """Raise an error unless values from JSON have the types of a function's arguments.

    Arguments:
        function: The function, or a class.
        values: The arguments by name.
        path: The name of the values in errors.
        more: Functions that take those arguments which `function` passes on to them as `**kwargs`.

    Example:
        >>> check_arguments(np.random.default_rng, {"seeds": 1}, "config")
        Traceback (most recent call last):
        ...
        ValueError: config.seeds must be left out: default_rng has no such argument
    """
    if not isinstance(values, dict):
        _refuse(values, dict, path)
    hints: dict[str, Any] = {}
    for each in [*more, function]:  # the last has the last word
        hints |= _find_hints(each)
    for name, value in values.items():
        if name not in hints:
            raise ValueError(f"{path}.{_shorten(name)} must be left out: {function.__name__} has no such argument")
        check_json(value, hints[name], f"{path}.{name}")


def _find_hints(function: Callable[..., Any]) -> dict[str, Any]:
    """Annotations of the arguments of a function or class; `Any` where there is none."""
    inner = function.__init__ if isinstance(function, type) else function  # type: ignore[misc]
    try:
        hints = get_type_hints(inner)
    except (NameError, TypeError, AttributeError):  # annotations of compiled functions, or only for type checkers
        hints = {}
    try:
        parameters = inspect.signature(function).parameters
    except ValueError:
        return {}
    named = [p.name for p in parameters.values() if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    return {name: hints.get(name, Any) for name in named}


def _is_float(value: object) -> bool:
    """Whether a value is a number that is not NaN; JSON writes 1.0 as 1 in some programs."""
    if isinstance(value, int) and not isinstance(value, bool):
        return abs(value) < 2**1023
    return isinstance(value, float) and not math.isnan(value)


_SCALARS: dict[Any, tuple[Callable[[object], bool], str]] = {
    bool: (lambda value: isinstance(value, bool), "true or false"),
    int: (lambda value: isinstance(value, int) and not isinstance(value, bool), "an integer"),
    float: (_is_float, "a number"),
    str: (lambda value: isinstance(value, str), "a string"),
    type(None): (lambda value: value is None, "null"),
    dict: (lambda value: isinstance(value, dict), "an object"),
    list: (lambda value: isinstance(value, list), "a list"),
    Hashable: (lambda value: not isinstance(value, dict), "a label"),
}
"""Checks of values without parts, and their names."""


def _find_item(hint: Any) -> Any:
    """The type of the items of a list, a tuple of types if they differ; None for a type that is no sequence."""
    origin, arguments = get_origin(hint) or hint, get_args(hint)
    if origin is np.ndarray:
        is_whole = bool(arguments) and "int" in str(arguments[-1])
        return int if is_whole else float
    if not isinstance(origin, type) or not issubclass(origin, Sequence | Iterable) or issubclass(origin, str | Mapping):
        return None
    if origin is tuple and arguments and arguments[-1] is not Ellipsis:
        return arguments
    return arguments[0] if arguments else Any


def _check_items(values: list[Any], item: Any, path: str) -> None:
    if isinstance(item, tuple):
        if len(values) != len(item):
            raise ValueError(f"{path} must have {len(item)} entries, got {len(values)}")
        for index, (value, hint) in enumerate(zip(values, item, strict=True)):
            check_json(value, hint, f"{path}[{index}]")
        return
    if item in _SCALARS and all(map(_SCALARS[item][0], values)):  # long lists of numbers
        return
    for index, value in enumerate(values):
        check_json(value, item, f"{path}[{index}]")


def _check_union(value: object, hint: Any, path: str) -> None:
    """Check a value against alternatives; the error is that of the only one which it resembles, if there is one."""
    errors, options = [], get_args(hint)
    if isinstance(value, dict) and (objects := [option for option in options if is_dataclass(option)]):
        # The error is about the object that has the most entries in common with the value.
        options = (max(objects, key=lambda option: len({f.name for f in fields(option)} & value.keys())),)
    for option in options:
        try:
            check_json(value, option, path)
            return
        except ValueError as error:
            if not str(error).startswith(f"{path} must be "):  # it names a part
                errors.append(error)
    if len(errors) == 1:
        raise errors[0]
    _refuse(value, hint, path)


def _check_fields(value: object, hint: Any, path: str) -> None:
    """Check the fields of a dataclass or of a typed dictionary."""
    if not isinstance(value, dict):
        _refuse(value, dict, path)
    hints = get_type_hints(hint)
    if is_dataclass(hint):
        accepted = [field for field in fields(hint) if field.init]
        hints = {field.name: hints[field.name] for field in accepted}
        required = {f.name for f in accepted if f.default is MISSING and f.default_factory is MISSING}
    else:
        required = set(hint.__required_keys__)
    for name in [*value, *required]:
        if name not in hints:
            raise ValueError(f"{path} has an entry {_shorten(name)}, which {hint.__name__} does not have")
        if name not in value:
            raise ValueError(f"{path} has no entry {name}, which {hint.__name__} requires")
        check_json(value[name], hints[name], f"{path}.{name}")


def _refuse(value: object, hint: Any, path: str) -> NoReturn:
    raise ValueError(f"{path} must be {_describe(hint)}, got {_shorten(json.dumps(value, default=str))}")


def _describe(hint: Any) -> str:
    """A type in the words of JSON."""
    if hint in _SCALARS:
        return _SCALARS[hint][1]
    if get_origin(hint) in (Union, types.UnionType):
        names = [_describe(option) for option in get_args(hint)]
        return " or ".join(dict.fromkeys(name for name in names if name != "of another type"))
    if get_origin(hint) is Literal:
        return f"one of {list(get_args(hint))}"
    if _find_item(hint) is not None:
        return "a list"
    origin = get_origin(hint) or hint
    is_object = is_dataclass(hint) or is_typeddict(hint) or (isinstance(origin, type) and issubclass(origin, Mapping))
    return "an object" if is_object else "of another type"


def _shorten(text: str) -> str:
    return text if len(text) <= MAX_TEXT else f"{text[: MAX_TEXT - 3]}..."
