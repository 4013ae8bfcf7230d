"""Image data sets in their published formats: idx (MNIST), NumPy arrays and CIFAR-10 batches."""

from __future__ import annotations

import gzip
import io
import math
import pickle
import re
import struct
import tarfile
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from elflow._checks import join_names

__all__ = ["Inert", "InertUnpickler", "is_idx", "read_batches", "read_idx", "read_numpy", "reading"]

Arrays = tuple[np.ndarray, np.ndarray | None]
"""Images `(N, C, H, W)` of uint8, and integer labels `(N,)` or None."""

IDX_PREFIXES = {"train": ("train",), "test": ("t10k", "test")}
"""Prefixes of the names of idx files, by split."""
IDX_NAME = re.compile(r"(?:.*[-.])?(train|t10k|test)-images[-.]idx3-ubyte(\.gz)?")
X_NAMES, Y_NAMES = ("x", "X", "images", "data"), ("y", "Y", "labels", "targets")
N_CHANNELS = (1, 3, 4)
BATCHES = {"train": tuple(f"data_batch_{i}" for i in range(1, 6)), "test": ("test_batch",)}
"""Names of CIFAR-10's files, by split. In the binary version they end in `.bin`."""
SIDE, N_CLASSES = 32, 10
"""Width and height of CIFAR-10's images, and its number of classes."""


@contextmanager
def reading(name: object) -> Iterator[None]:
    """Context manager that turns any error of a parser into a `ValueError` that names the file.

    Which exception a parser raises for a damaged file depends on where the file is damaged. `MemoryError` and
    `PermissionError` are passed on.

    Arguments:
        name: The file, for the error message.

    Example:
        >>> with reading("data.npz"):
        ...     raise EOFError("no data left")
        Traceback (most recent call last):
        ...
        ValueError: data.npz cannot be read: it is damaged or has an unsupported format (no data left)
    """
    try:
        yield
    except (MemoryError, PermissionError):
        raise
    except Exception as error:
        reason = str(error) or type(error).__name__
        raise ValueError(f"{name} cannot be read: it is damaged or has an unsupported format ({reason})") from error


def check_no_split(path: Path, split: str | None) -> None:
    """Refuse a choice of split for a file that has no splits."""
    if split is not None:
        raise ValueError(f"split must be None for {path}, which is not divided into training and test, got {split!r}")


# idx files (MNIST)


def is_idx(path: Path) -> bool:
    """Whether a path is an idx file, or a folder with one, by its name.

    Example:
        >>> is_idx(Path("train-images-idx3-ubyte.gz")), is_idx(Path("data.npz"))
        (True, False)
    """
    if path.is_dir():
        return any(IDX_NAME.fullmatch(file.name) for file in path.iterdir())
    return re.search(r"idx\d|ubyte", path.name) is not None


def read_idx(path: Path, split: str | None) -> Arrays:
    """Read an idx file of images, or that of a folder, and the labels in the file beside it."""
    if path.is_dir():
        path = _find_idx_file(path, split or "train")
    else:
        name = IDX_NAME.fullmatch(path.name)
        own = next((part for part, prefixes in IDX_PREFIXES.items() if name and name[1] in prefixes), None)
        if own is None:
            check_no_split(path, split)
        elif split not in (None, own):
            raise ValueError(f"split must be {own!r} for {path}, which holds only that split, got {split!r}")
    x = _read_idx_array(path, 3)[:, None]
    plain = path.name.removesuffix(".gz").replace("images", "labels").replace("idx3", "idx1")
    beside = [path.with_name(plain), path.with_name(plain + ".gz")] if "images" in path.name else []
    return x, next((_read_idx_array(file, 1) for file in beside if file.is_file()), None)


def _find_idx_file(folder: Path, split: str) -> Path:
    """The image file of a split; of a file and its `.gz`, the file."""
    files = {}
    for file in sorted(folder.iterdir(), reverse=True):  # so that a file replaces its .gz
        match = IDX_NAME.fullmatch(file.name)
        if match and match[1] in IDX_PREFIXES[split] and file.is_file():
            files[file.name.removesuffix(".gz")] = file
    if not files:
        wanted = f"{IDX_PREFIXES[split][0]}-images-idx3-ubyte"
        raise ValueError(f"{folder} must hold {wanted} or {wanted}.gz for split {split!r}")
    if len(files) > 1:
        raise ValueError(
            f"{folder} holds several files for split {split!r}, {join_names(sorted(files))}: pass one of them"
        )
    return next(iter(files.values()))


def _read_idx_array(path: Path, axes: int) -> np.ndarray:
    data = path.read_bytes()
    if data.startswith(b"\x1f\x8b"):  # not by the name: some browsers unpack a .gz and keep its name
        with reading(path):
            data = gzip.decompress(data)
    magic, start = bytes([0, 0, 8, axes]), 4 + 4 * axes
    if data[:4] != magic:
        what = "images" if axes == 3 else "labels"
        raise ValueError(f"{path} must begin with {magic.hex()}, as idx files of {what} do, got {data[:4].hex()!r}")
    shape = struct.unpack_from(f">{axes}I", data, 4) if len(data) >= start else ()
    expected = start + math.prod(shape)
    if len(data) != expected:
        raise ValueError(f"{path} is damaged: its uncompressed size must be {expected} bytes, got {len(data)}")
    return np.frombuffer(data, np.uint8, offset=start).reshape(shape)


# NumPy arrays


def read_numpy(path: Path, split: str | None) -> Arrays:
    """Read the array of an .npy file, or images and labels of an .npz file by their names."""
    with path.open("rb") as stream:  # NumPy does not close a damaged file
        with reading(path):
            file = np.load(stream, allow_pickle=False)
        if isinstance(file, np.ndarray):
            check_no_split(path, split)
            return _as_images(str(path), file), None
        x_name, y_name = _find_array_names(path, file.files, split)
        with reading(path):
            x = np.asarray(file[x_name])
            y = None if y_name is None else np.asarray(file[y_name])
    images = _as_images(f"{x_name} of {path}", x)
    if y is None:
        return images, None
    labels = _as_labels(f"{y_name} of {path}", y)
    return images, labels


def _find_array_names(path: Path, names: Sequence[str], split: str | None) -> tuple[str, str | None]:
    """Names of the arrays of images and labels."""
    for part in [None, "train"] if split is None else [split]:
        x = next((name for name in [*_spell_names(X_NAMES, part), part] if name in names), None)
        if x is not None:
            return x, next((name for name in _spell_names(Y_NAMES, part) if name in names), None)
    if any(name in names for name in X_NAMES):
        check_no_split(path, split)
    only_test = any(name in names for name in [*_spell_names(X_NAMES, "test"), "test"])
    if split is None and len(names) == 1 and not only_test:
        return names[0], None
    wanted = X_NAMES if split is None else [f"{name}_{split}" for name in X_NAMES]
    hint = ": pass split='test'" if split is None and only_test else ""
    raise ValueError(f"{path} must have an array of images named {join_names(wanted)}, got {join_names(names)}{hint}")


def _spell_names(names: Iterable[str], part: str | None) -> list[str]:
    """All spellings of names for a split: x becomes x_train and train_x."""
    return [spelling for name in names for spelling in ([f"{name}_{part}", f"{part}_{name}"] if part else [name])]


def _as_images(name: str, a: np.ndarray) -> np.ndarray:
    a = _as_bytes(name, a)
    if a.ndim == 2 and a.shape[0] != a.shape[1]:  # a square array is rather one image than many
        for channels in (1, 3):  # no number is both a square and three times a square
            side = math.isqrt(a.shape[1] // channels)
            if channels * side**2 == a.shape[1]:
                return a.reshape(len(a), channels, side, side)
    elif a.ndim == 3:
        return a[:, None]
    elif a.ndim == 4:
        first, last = a.shape[1] in N_CHANNELS, a.shape[3] in N_CHANNELS
        if first and last:  # tiny images: the reading that makes them square is right
            square = a.shape[2] == a.shape[3], a.shape[1] == a.shape[2]
            first, last = (square[0] and not square[1]), square[1]
        if first:
            return a
        if last:
            return np.moveaxis(a, 3, 1)
    raise ValueError(
        f"{name} must have the shape (N, H, W), (N, H, W, C) or (N, C, H, W) with C in {N_CHANNELS}, or (N, pixels) "
        f"of square images; got the ambiguous or unsupported shape {a.shape}"
    )


def _as_bytes(name: str, a: np.ndarray) -> np.ndarray:
    if a.dtype == np.uint8:
        return a
    if a.dtype.kind == "f":
        is_unit = a.size and a.min() >= 0 and a.max() <= 1
        how = "(255 * x).round().astype('uint8')" if is_unit else "x.astype('uint8') if all are whole, from 0 to 255"
        raise ValueError(f"{name} must hold integers from 0 to 255, got {a.dtype}: save it as {how}")
    if a.dtype.kind not in "bui":
        raise ValueError(f"{name} must hold integers from 0 to 255, got {a.dtype}")
    if a.size and not (a.min() >= 0 and a.max() <= 255):
        raise ValueError(f"{name} must hold integers from 0 to 255, got values from {a.min()} to {a.max()}")
    return a.astype(np.uint8)


def _as_labels(name: str, a: np.ndarray) -> np.ndarray:
    if a.dtype.kind not in "bui":
        raise ValueError(f"{name} must hold integers, one label per image, got {a.dtype}")
    if a.ndim == 2 and a.shape[1] == 1:
        a = a[:, 0]
    if a.ndim != 1:
        hint = ": for one-hot labels, save y.argmax(1)" if a.ndim == 2 else ""
        raise ValueError(f"{name} must have the shape (N,), one label per image, got {a.shape}{hint}")
    return a


# CIFAR-10 batches


def has_batches(folder: Path) -> bool:
    """Whether a folder has any of CIFAR-10's files."""
    return any((folder / name).is_file() for names in BATCHES.values() for name in _add_binary_names(names))


def read_batches(path: Path, split: str | None) -> Arrays:
    """Read CIFAR-10, in the Python or the binary version, from a tar file or a folder."""
    wanted = BATCHES[split or "train"]
    read_files = _read_folder_files if path.is_dir() else _read_tar_files
    files = read_files(path, _add_binary_names(wanted))
    is_binary = any(name.endswith(".bin") for name in files) and not all(name in files for name in wanted)
    names = [f"{name}.bin" for name in wanted] if is_binary else list(wanted)
    absent = [name for name in names if name not in files]
    if absent:
        raise ValueError(f"{path} must hold CIFAR-10's {join_names(names)}, but lacks {join_names(absent)}")
    parse = _parse_binary_batch if is_binary else _parse_pickled_batch
    batches = [parse(f"{name} of {path}", files.pop(name)) for name in names]
    x = np.concatenate([images for images, _ in batches]).reshape(-1, 3, SIDE, SIDE)
    return x, np.concatenate([labels for _, labels in batches])


def _add_binary_names(names: Iterable[str]) -> list[str]:
    return [spelling for name in names for spelling in (name, f"{name}.bin")]


def _read_folder_files(path: Path, names: Collection[str]) -> dict[str, bytes]:
    return {name: (path / name).read_bytes() for name in names if (path / name).is_file()}


def _read_tar_files(path: Path, names: Collection[str]) -> dict[str, bytes]:
    """Read files of an archive into memory; nothing is extracted to the disk."""
    contents: dict[str, bytes] = {}
    with reading(path), tarfile.open(path) as archive:
        for member in archive:  # in their order: seeking back would decompress everything again
            name = member.name.rpartition("/")[2]
            if name in names and member.isfile() and (file := archive.extractfile(member)) is not None:
                contents.setdefault(name, file.read())
        while archive.fileobj and archive.fileobj.read(1 << 20):  # up to the end, where gzip verifies its checksum
            pass
    return contents


def _parse_binary_batch(name: str, data: bytes) -> tuple[np.ndarray, np.ndarray]:
    row = 1 + 3 * SIDE**2
    if not data or len(data) % row:
        raise ValueError(f"{name} is damaged: its size must be a multiple of {row} bytes, got {len(data)}")
    rows = np.frombuffer(data, np.uint8).reshape(-1, row)
    return _check_batch(name, rows[:, 1:], rows[:, 0])


def _parse_pickled_batch(name: str, data: bytes) -> tuple[np.ndarray, np.ndarray]:
    with reading(name):
        batch = InertUnpickler(io.BytesIO(data), encoding="bytes").load()
        batch = {key.decode() if isinstance(key, bytes) else key: value for key, value in batch.items()}
        if not {"data", "labels"} <= batch.keys():
            raise ValueError(f"it must have data and labels, got {join_names(list(batch))}")
        x, labels = _to_array(batch["data"]), np.array(batch["labels"], np.int64)
    return _check_batch(name, x, labels)


def _check_batch(name: str, x: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    if labels.ndim != 1 or x.shape != (len(labels), 3 * SIDE**2):
        raise ValueError(
            f"{name} must have {3 * SIDE**2} pixels and one label per image, got arrays of shape {x.shape} and "
            f"{labels.shape}"
        )
    if labels.size and not 0 <= labels.min() <= labels.max() < N_CLASSES:
        raise ValueError(f"{name} must have labels from 0 to {N_CLASSES - 1}, got {labels.min()} to {labels.max()}")
    return x, labels


class Inert:
    """Placeholder for an object of a pickle: it stores the arguments and the state, and does nothing.

    Example:
        >>> Inert("u1", 0, 1).args
        ('u1', 0, 1)
    """

    state: Any = None

    def __init__(self, *args: Any) -> None:
        self.args = args

    def __setstate__(self, state: Any) -> None:
        self.state = state


class _EncodedBytes(Inert, bytes):
    """Bytes in a pickle that Python 3 wrote for Python 2: latin1 text, to be encoded."""

    def __new__(cls, text: str, encoding: str) -> _EncodedBytes:
        if encoding not in ("latin1", b"latin1"):
            raise pickle.UnpicklingError(f"bytes must be encoded as latin1, got {encoding!r}")
        return super().__new__(cls, text.encode("latin1"))


ALLOWED_NAMES = {
    ("numpy", "ndarray"): Inert,
    ("numpy", "dtype"): Inert,
    ("numpy.core.multiarray", "_reconstruct"): Inert,
    ("numpy._core.multiarray", "_reconstruct"): Inert,
    ("_codecs", "encode"): _EncodedBytes,
}
"""Names that a pickle may refer to, and the placeholders that they resolve to."""


class InertUnpickler(pickle.Unpickler):
    """Unpickler that runs no code: it reads lists, dictionaries, texts, numbers and descriptions of arrays.

    Every name resolves to an `Inert` placeholder or is refused. A subclass may resolve more names in `find_class`, to
    subclasses of `Inert`.

    Example:
        >>> InertUnpickler(io.BytesIO(pickle.dumps({"a": [1, 2]}))).load()
        {'a': [1, 2]}
        >>> InertUnpickler(io.BytesIO(pickle.dumps(print))).load()
        Traceback (most recent call last):
        ...
        _pickle.UnpicklingError: it refers to builtins.print, which is refused because it could run code
    """

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in ALLOWED_NAMES:
            raise pickle.UnpicklingError(f"it refers to {module}.{name}, which is refused because it could run code")
        return ALLOWED_NAMES[module, name]


def _to_array(inert: Inert) -> np.ndarray:
    """The array of uint8 that a pickle describes."""
    _, shape, dtype, is_by_column, raw = inert.state
    if dtype.args[0] not in ("u1", b"u1") or is_by_column:
        raise ValueError(f"its data must be of uint8 in row-major order, got {dtype.args[0]!r}")
    return np.frombuffer(raw, np.uint8).reshape(shape)
