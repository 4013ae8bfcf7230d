"""Arrow tables from untrusted bytes: limits are checked before memory is allocated.

Arrow's reader accepts any bytes, but a small body can stand for a large table: buffers may be compressed, and columns
without buffers have any length. So the metadata of each message are read first, by the layout of FlatBuffers.
"""

from __future__ import annotations

import struct

import pyarrow as pa
import pyarrow.compute as pc

from elflow.serve.limits import Limits, Refusal

__all__ = ["FILE_TYPE", "STREAM_TYPE", "read_arrow", "write_arrow"]

STREAM_TYPE = "application/vnd.apache.arrow.stream"
FILE_TYPE = "application/vnd.apache.arrow.file"
MAGIC = b"ARROW1"
RECORD_BATCH, DICTIONARY_BATCH = 3, 2
"""Types of messages with data, as in Arrow's `Message.fbs`."""


def read_arrow(body: bytes, limits: Limits) -> pa.Table:
    """Read a table in Arrow's format for streams or files."""
    try:
        if body.startswith(MAGIC):
            table = _read_file(body, limits)
        else:
            _check_messages(body, limits)
            table = pa.ipc.open_stream(body).read_all()
        limits.check_rows("rows", table.num_rows)
        for field in table.schema:
            _check_type(field)
        _validate(table, limits)
        for name, column in zip(table.column_names, table.columns, strict=True):
            _check_size(name, column, limits)
    except (pa.ArrowException, OSError, struct.error, IndexError, UnicodeDecodeError, OverflowError) as error:
        raise Refusal(400, f"the body must be a table in Arrow's IPC format, got: {_shorten(error)}") from None
    return table


def write_arrow(table: pa.Table, media_type: str) -> bytes:
    """A table in Arrow's format for streams or files."""
    sink = pa.BufferOutputStream()
    make = pa.ipc.new_file if media_type == FILE_TYPE else pa.ipc.new_stream
    with make(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue().to_pybytes()


def _read_file(body: bytes, limits: Limits) -> pa.Table:
    """A file contains a stream after its magic number, padded to eight bytes; its footer is not needed."""
    stream = body[8:]
    _check_messages(stream, limits)
    return pa.ipc.open_stream(stream).read_all()


def _check_messages(stream: bytes, limits: Limits) -> None:
    """Refuse compressed buffers, and too many rows, before Arrow reads the data."""
    n_rows, position = 0, 0
    while position + 8 <= len(stream):
        mark, size = struct.unpack_from("<Ii", stream, position)
        if mark != 0xFFFFFFFF:
            raise Refusal(400, "the body must be a table in Arrow's IPC format of version 0.15 or later")
        if size <= 0:  # the end of the stream
            return
        metadata = memoryview(stream)[position + 8 : position + 8 + size]
        rows, body_size = _inspect_message(metadata)
        n_rows += rows
        limits.check_rows("rows", n_rows)
        if body_size < 0:
            raise Refusal(400, "the body must be a table in Arrow's IPC format, got a message of negative size")
        position += 8 + size + body_size


def _inspect_message(metadata: memoryview) -> tuple[int, int]:
    """Number of rows of a message's batch, 0 for other messages, and the size of its body."""
    (root,) = struct.unpack_from("<I", metadata, 0)
    (kind,) = _read_field(metadata, root, 1, "B", 0)
    (body_size,) = _read_field(metadata, root, 3, "q", 0)
    batch = _follow(metadata, root, 2)
    if batch is not None and kind == DICTIONARY_BATCH:
        batch = _follow(metadata, batch, 1)
    if batch is None or kind not in (RECORD_BATCH, DICTIONARY_BATCH):
        return 0, body_size
    if _follow(metadata, batch, 3) is not None:
        raise Refusal(415, "the body must be an Arrow table without compression of its buffers")
    (length,) = _read_field(metadata, batch, 0, "q", 0)
    if length < 0:
        raise Refusal(400, "the body must be a table in Arrow's IPC format, got a negative number of rows")
    return length if kind == RECORD_BATCH else 0, body_size


def _locate(data: memoryview, table: int, field: int) -> int | None:
    """Position of a field of a FlatBuffers table; None if it has the default value."""
    (distance,) = struct.unpack_from("<i", data, table)
    vtable = table - distance
    if vtable < 0:
        raise IndexError("vtable")
    (size,) = struct.unpack_from("<H", data, vtable)
    entry = 4 + 2 * field
    if entry + 2 > size:
        return None
    (offset,) = struct.unpack_from("<H", data, vtable + entry)
    return table + offset if offset else None


def _read_field(data: memoryview, table: int, field: int, code: str, default: int) -> tuple[int]:
    position = _locate(data, table, field)
    return (default,) if position is None else struct.unpack_from(f"<{code}", data, position)


def _follow(data: memoryview, table: int, field: int) -> int | None:
    """Position of the table that a field refers to."""
    position = _locate(data, table, field)
    return None if position is None else position + struct.unpack_from("<I", data, position)[0]


def _check_type(field: pa.Field) -> None:
    """Refuse types whose values may share memory, so that they are larger than the body once they are converted."""
    types = pa.types
    dtype = field.type.value_type if types.is_dictionary(field.type) else field.type
    supported = (
        *(types.is_integer, types.is_floating, types.is_boolean, types.is_decimal, types.is_null),
        *(types.is_date, types.is_time, types.is_timestamp, types.is_string, types.is_large_string),
    )
    if not any(is_type(dtype) for is_type in supported):
        raise Refusal(422, f"column {field.name!r:.200} must hold numbers, text, booleans or times, got {field.type}")


def _validate(table: pa.Table, limits: Limits) -> None:
    """Refuse offsets and indices that lead outside of the buffers: nothing may read a value before."""
    table.validate()  # sizes of buffers, on which the size of the table relies
    if table.nbytes > limits.bytes:
        raise Refusal(
            413, f"the table must have at most {limits.bytes:,} bytes, got {table.nbytes:,}: buffers are shared"
        )
    table.validate(full=True)  # dictionaries as well


def _check_size(name: str, column: pa.ChunkedArray, limits: Limits) -> None:
    """Refuse a dictionary whose values, once for each row, are too large."""
    if not pa.types.is_dictionary(column.type):
        return
    longest = max((_measure_longest_value(chunk.dictionary) for chunk in column.chunks), default=0)
    if longest * len(column) > limits.bytes:
        raise Refusal(413, f"column {name!r:.200} must have shorter values, or fewer rows")


def _measure_longest_value(dictionary: pa.Array) -> int:
    """Number of bytes of the longest value."""
    is_text = pa.types.is_string(dictionary.type) or pa.types.is_large_string(dictionary.type)
    return (pc.max(pc.binary_length(dictionary)).as_py() or 0) if is_text else 16


def _shorten(error: Exception) -> str:
    return " ".join(str(error).split())[:200]
