"""Mutations: of bytes, and of JSON values."""

from __future__ import annotations

import random
from typing import Any

__all__ = ["list_paths", "mutate_bytes", "mutate_json"]

HOSTILE: list[Any] = [
    None, True, False, 0, 1, -1, 2, 3, 1.5, -0.0, 1e-300, 1e300, float("inf"), float("-inf"), float("nan"), 2**31,
    2**63, 10**6, 10**9, 10**30, -(10**30), "", "a", "0", "nan", "\x00", "../../etc/passwd", "x" * 1000, [], [0], [[]],
    [None], {}, {"a": 1}, [1, "2", None], list(range(50)), "int64", "datetime64[ns]", "category", "nsf", "cnf",
]  # fmt: skip
"""Values that take the place of others."""


def mutate_bytes(rng: random.Random, data: bytes) -> tuple[str, bytes]:
    """Damage bytes at random; the result differs from the original.

    Example:
        >>> fault, damaged = mutate_bytes(random.Random(0), b"content of a file")
        >>> damaged != b"content of a file"
        True
    """
    while True:
        fault = rng.choice(["flip", "flip", "flip", "set", "truncate", "insert", "delete", "repeat", "zero", "append"])
        start = rng.randrange(len(data)) if rng.random() < 0.7 else rng.randrange(min(len(data), 4096))
        length = min(rng.choice([1, 2, 8, 64, 512]), len(data) - start)
        noise = rng.randbytes(length)
        before, middle, after = data[:start], data[start : start + length], data[start + length :]
        if fault == "flip":
            result = before + bytes([data[start] ^ (1 << rng.randrange(8))]) + data[start + 1 :]
        elif fault == "set":
            result = before + noise + after
        elif fault == "truncate":
            result = before
        elif fault == "insert":
            result = before + noise + middle + after
        elif fault == "delete":
            result = before + after
        elif fault == "repeat":
            result = before + middle + middle + after
        elif fault == "zero":
            result = before + bytes(length) + after
        else:
            result = data + noise
        if result != data:
            return f"{fault} at {start}", result


def list_paths(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Paths of all entries of a JSON value.

    Example:
        >>> list_paths({"a": [1, 2]})
        [('a',), ('a', 0), ('a', 1)]
    """
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else []
    paths = []
    for key, entry in items:
        paths += [(*path, key), *list_paths(entry, (*path, key))]
    return paths


def mutate_json(rng: random.Random, value: Any, replacement: Any = ...) -> str:
    """Change a random entry of a JSON value in place, and describe the change.

    Arguments:
        rng: Source of random numbers.
        value: The value, a dictionary.
        replacement: What takes the place of an entry; by default one of many hostile values.
    """
    paths = list_paths(value)
    path = rng.choice(paths)
    parent = value
    for key in path[:-1]:
        parent = parent[key]
    key, name = path[-1], ".".join(map(str, path))[:100]
    fault = (
        "replace"
        if replacement is not ...
        else rng.choice(["replace", "replace", "replace", "number", "remove", "add"])
    )
    if fault == "remove":
        del parent[key]
    elif fault == "add" and isinstance(parent, dict):
        parent[f"{key}_"] = rng.choice(HOSTILE)
    elif fault == "number" and isinstance(parent[key], int | float) and not isinstance(parent[key], bool):
        parent[key] = parent[key] * rng.choice([-1, 2, 10, 1000]) + rng.choice([0, 1])
    else:
        parent[key] = rng.choice(HOSTILE) if replacement is ... else replacement
        return f"{name} = {parent[key]!r}"[:160]
    return f"{fault} {name}"
