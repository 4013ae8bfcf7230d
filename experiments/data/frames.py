"""Columns of a pickled pandas DataFrame of any version, read without running code from the pickle."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from elflow._checks import join_names
from elflow.io.archives import Inert, InertUnpickler, reading

__all__ = ["read_frame"]

MAX_COLUMNS = 100_000
"""A longer Index without names is refused: its names would fill the memory."""


class _Still(Inert):
    """An inert object that may be created without arguments."""

    args: tuple[Any, ...] = ()


class _Frame(_Still):
    """A DataFrame, with the manager of its blocks in its state."""


class _Manager(_Still):
    """Blocks and axes: the arguments, or the state before pandas 1.3."""


class _Block(_Still):
    """Columns of one type: their values `(columns, N)` and their positions."""


class _Index(_Still):
    """Names along an axis: a class and its arguments."""


class _ArrowTexts(_Still):
    """Names as pyarrow strings, as in pandas 3."""


class _Texts(_Still):
    """Names as NumPy strings, as in pandas 3 without pyarrow."""


class _ArrowArray(_Still):
    """An array of pyarrow. Its only argument is a tuple of type, length, nulls, offset and buffers."""


class _ArrowChunks(_Still):
    """A chunked array of pyarrow."""


class _Slice(_Still):
    """A slice."""


class _Wrapped(_Still):
    """A container of bytes: a bytearray or a buffer of pyarrow."""


class _FromBuffer(_Still):
    """An array in pickle protocol 5: bytes, dtype, shape and order."""


PANDAS: dict[str, type[Inert]] = {
    "DataFrame": _Frame,
    "BlockManager": _Manager,
    "_unpickle_block": _Block,
    "_new_Index": _Index,
    "ArrowStringArray": _ArrowTexts,
    "ArrowStringArrayNumpySemantics": _ArrowTexts,
    "__pyx_unpickle_NDArrayBacked": _Texts,
    **dict.fromkeys(["Index", "RangeIndex", "Int64Index", "UInt64Index", "Float64Index"], _Still),
    **dict.fromkeys(["StringDtype", "StringArray", "StringArrayNumpySemantics", "NA"], _Still),
}
"""Classes and functions of pandas in any of its modules, which differ between versions."""
OTHERS: dict[tuple[str, str], type[Inert]] = {
    ("pyarrow.lib", "_restore_array"): _ArrowArray,
    ("pyarrow.lib", "chunked_array"): _ArrowChunks,
    ("pyarrow.lib", "py_buffer"): _Wrapped,
    ("pyarrow.lib", "type_for_alias"): _Still,
    ("numpy.core.numeric", "_frombuffer"): _FromBuffer,
    ("numpy._core.numeric", "_frombuffer"): _FromBuffer,
    **{(module, "slice"): _Slice for module in ("builtins", "__builtin__")},
    **{(module, "bytearray"): _Wrapped for module in ("builtins", "__builtin__")},
}


class _FrameUnpickler(InertUnpickler):
    """Unpickler for DataFrames of numbers. Every name resolves to an inert class of this module or of its base."""

    def find_class(self, module: str, name: str) -> Any:
        if module.partition(".")[0] == "pandas" and name in PANDAS:
            return PANDAS[name]
        return OTHERS.get((module, name)) or super().find_class(module, name)


def read_frame(path: Path) -> dict[str, np.ndarray]:
    """Read the columns `(N,)` of a pickled DataFrame of numbers, by name and in order.

    Example:
        >>> import pandas, tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = Path(folder, "frame.pickle")
        ...     pandas.DataFrame({"a": [1.0, 2.0]}).to_pickle(path)
        ...     read_frame(path)
        {'a': array([1., 2.])}
    """
    with path.open("rb") as stream, reading(path):
        frame = _FrameUnpickler(stream, encoding="bytes").load()
        if not isinstance(frame, _Frame):
            raise ValueError(f"it must hold a pandas DataFrame, got {_name_kind(frame)}")
        return _read_columns(frame)


def _read_columns(frame: _Frame) -> dict[str, np.ndarray]:
    parts = _decode_keys(frame.state)
    manager = parts.get("_mgr", parts.get("_data"))
    if not isinstance(manager, _Manager):
        raise ValueError(f"its DataFrame must be of a BlockManager, got {_name_kind(manager)}")
    if manager.args:
        blocks, axes = manager.args
        pairs = [block.args[:2] for block in blocks]
    else:  # after three older layouts, a dictionary by the pandas version that introduced the layout
        newest = _decode_keys(_decode_keys(manager.state[3])["0.14.1"])
        axes = newest["axes"]
        pairs = [(block["values"], block["mgr_locs"]) for block in map(_decode_keys, newest["blocks"])]
    names = _read_names(axes[0])
    columns: dict[int, np.ndarray] = {}
    for values, places in pairs:
        where = range(len(names))[slice(*places.args)] if isinstance(places, _Slice) else _build_array(places).tolist()
        columns.update(zip(where, _build_array(values), strict=True))
    if len(set(names)) != len(names) or sorted(columns) != list(range(len(names))):
        raise ValueError(f"it must have one column for each name, got {len(columns)} for {join_names(names)}")
    return {name: columns[i] for i, name in enumerate(names)}


def _name_kind(value: Any) -> str:
    """The kind of an object, for an error message."""
    return "an array" if type(value) in (Inert, _FromBuffer) else type(value).__name__.lstrip("_")


def _decode_keys(parts: Mapping[str | bytes, Any]) -> dict[str, Any]:
    """A dictionary with string keys: Python 2 wrote them as bytes."""
    return {_decode_text(key): value for key, value in parts.items()}


def _decode_text(value: Any) -> str:
    return value.decode("latin1") if isinstance(value, bytes) else str(value)


def _unwrap_bytes(value: Any) -> bytes | bytearray:
    while isinstance(value, _Wrapped):
        (value,) = value.args
    if not isinstance(value, bytes | bytearray):
        raise ValueError(f"its arrays must be of bytes, got {_name_kind(value)}")
    return value


def _split_array(inert: Inert) -> tuple[str, Any, Any, bool]:
    """The dtype, the data, the shape, and whether the order is that of Fortran."""
    if isinstance(inert, _FromBuffer):
        data, dtype, shape, order = inert.args
        by_column = order == "F"
    elif type(inert) is not Inert:
        raise ValueError(f"its columns must be of numbers, got {_name_kind(inert)}")
    else:
        _, shape, dtype, by_column, data = inert.state
    return _decode_text(dtype.state[1]) + _decode_text(dtype.args[0]), data, shape, by_column


def _build_array(inert: Inert) -> np.ndarray:
    """The array of numbers that a pickle describes."""
    kind, data, shape, by_column = _split_array(inert)
    if not re.fullmatch(r"[<>|][fiu][1248]", kind):
        raise ValueError(f"its columns must be of numbers, got {kind!r}")
    return np.frombuffer(_unwrap_bytes(data), kind).reshape(shape, order="F" if by_column else "C")


def _read_names(index: Inert) -> list[str]:
    """The names along an axis."""
    if not isinstance(index, _Index):
        raise ValueError(f"its columns must have an Index, got {_name_kind(index)}")
    parts = _decode_keys(index.args[1])
    if "data" not in parts:
        places = range(parts["start"], parts["stop"], parts["step"])
        if len(places) > MAX_COLUMNS:
            raise ValueError(f"it must have at most {MAX_COLUMNS:,} columns, got an Index of {len(places):,}")
        return [str(i) for i in places]
    data = parts["data"]
    if isinstance(data, _ArrowTexts):
        return _read_arrow_texts(_decode_keys(data.state)["_pa_array"])
    if isinstance(data, _Texts):
        data = data.state[1]
    kind, items, _, _ = _split_array(data)
    return [
        _decode_text(item) for item in (_check_texts(items) if kind.startswith("|O") else _build_array(data).tolist())
    ]


def _check_texts(items: Any) -> Iterable[str | bytes]:
    if not isinstance(items, list) or not all(isinstance(item, str | bytes) for item in items):
        raise ValueError("the names of its columns must be texts")
    return items


def _read_arrow_texts(array: Inert) -> list[str]:
    if isinstance(array, _ArrowChunks):
        return [name for chunk in array.args[0] for name in _read_arrow_texts(chunk)]
    kind, length, nulls, offset, (_, places, texts), *_ = array.args[0]
    width = {"string": "<i4", "large_string": "<i8"}.get(kind.args[0])
    if width is None or nulls:
        raise ValueError(f"the names of its columns must be texts, got {kind.args[0]!r} with {nulls} missing")
    bounds = np.frombuffer(_unwrap_bytes(places), width)[offset : offset + length + 1].tolist()
    data = bytes(_unwrap_bytes(texts))
    return [data[start:stop].decode() for start, stop in pairwise(bounds)]
