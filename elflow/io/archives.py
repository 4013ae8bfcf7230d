"""Images in the files that data sets are published in: MNIST's idx, NumPy's arrays, and CIFAR-10's batches."""

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

from elflow.io._sources import listed

Arrays = tuple[np.ndarray, np.ndarray | None]
"""Images (N, C, H, W) of uint8, and integer labels (N,) where there are any."""

IDX = {"train": ("train",), "test": ("t10k", "test")}
"""How the names of idx files begin."""
IDX_NAME = re.compile(r"(?:.*[-.])?(train|t10k|test)-images[-.]idx3-ubyte(\.gz)?")
X_NAMES, Y_NAMES = ("x", "X", "images", "data"), ("y", "Y", "labels", "targets")
CHANNELS = (1, 3, 4)
BATCHES = {"train": tuple(f"data_batch_{i}" for i in range(1, 6)), "test": ("test_batch",)}
"""CIFAR-10's files; those of the binary version end in `.bin`."""
SIDE, CLASSES = 32, 10


@contextmanager
def readable(name: object) -> Iterator[None]:
    """Turns what a damaged file raises, which depends on where it is damaged, into an error that names the file."""
    try:
        yield
    except (MemoryError, PermissionError):
        raise
    except Exception as error:
        reason = str(error) or type(error).__name__
        raise ValueError(f"{name} cannot be read, it is damaged or of another kind: {reason}") from error


def check_undivided(path: Path, split: str | None) -> None:
    if split is not None:
        raise ValueError(f"split must be None for {path}, which has no parts for training and test, got {split!r}")


# MNIST's idx


def is_idx(path: Path) -> bool:
    """Whether a file's name, or that of one in a folder, says that it is idx."""
    if path.is_dir():
        return any(IDX_NAME.fullmatch(file.name) for file in path.iterdir())
    return re.search(r"idx\d|ubyte", path.name) is not None


def read_idx(path: Path, split: str | None) -> Arrays:
    """One file of images, or that of a folder, with the labels beside it."""
    if path.is_dir():
        path = _idx_file(path, split or "train")
    else:
        name = IDX_NAME.fullmatch(path.name)
        own = next((part for part, begins in IDX.items() if name and name[1] in begins), None)
        if own is None:
            check_undivided(path, split)
        elif split not in (None, own):
            raise ValueError(f"split must be {own!r} for {path}, which holds nothing else, got {split!r}")
    x = _idx_array(path, 3)[:, None]
    plain = path.name.removesuffix(".gz").replace("images", "labels").replace("idx3", "idx1")
    beside = [path.with_name(plain), path.with_name(plain + ".gz")] if "images" in path.name else []
    return x, next((_idx_array(file, 1) for file in beside if file.is_file()), None)


def _idx_file(folder: Path, split: str) -> Path:
    """The images of a part, unpacked rather than packed."""
    files = {}
    for file in sorted(folder.iterdir(), reverse=True):  # what ends in .gz comes first, and is replaced
        name = IDX_NAME.fullmatch(file.name)
        if name and name[1] in IDX[split] and file.is_file():
            files[file.name.removesuffix(".gz")] = file
    if not files:
        raise ValueError(f"{folder} must hold {IDX[split][0]}-images-idx3-ubyte or that .gz, for split {split!r}")
    if len(files) > 1:
        raise ValueError(f"{folder} holds several files for split {split!r}, {listed(sorted(files))}: pass one of them")
    return next(iter(files.values()))


def _idx_array(path: Path, axes: int) -> np.ndarray:
    data = path.read_bytes()
    if data.startswith(b"\x1f\x8b"):  # rather than by name: browsers unpack files and leave them theirs
        with readable(path):
            data = gzip.decompress(data)
    magic, start = bytes([0, 0, 8, axes]), 4 + 4 * axes
    if data[:4] != magic:
        what = "images" if axes == 3 else "labels"
        raise ValueError(f"{path} must begin with {magic.hex()}, as idx files of {what} do, got {data[:4].hex()!r}")
    shape = struct.unpack_from(f">{axes}I", data, 4) if len(data) >= start else ()
    expected = start + math.prod(shape)
    if len(data) != expected:
        raise ValueError(f"{path} is damaged: it must have {expected} bytes when unpacked, got {len(data)}")
    return np.frombuffer(data, np.uint8, offset=start).reshape(shape)


# NumPy's


def read_numpy(path: Path, split: str | None) -> Arrays:
    """An array of an .npy file, or those of an .npz file that the names say are images and labels."""
    with path.open("rb") as stream:  # NumPy would leave it open if it is damaged
        with readable(path):
            file = np.load(stream, allow_pickle=False)
        if isinstance(file, np.ndarray):
            check_undivided(path, split)
            return _as_images(str(path), file), None
        x_name, y_name = _array_names(path, file.files, split)
        with readable(path):
            x = np.asarray(file[x_name])
            y = None if y_name is None else np.asarray(file[y_name])
    images = _as_images(f"{x_name} of {path}", x)
    if y is None:
        return images, None
    labels = _as_labels(f"{y_name} of {path}", y)
    return images, labels


def _array_names(path: Path, names: Sequence[str], split: str | None) -> tuple[str, str | None]:
    """The arrays that hold the images and the labels."""
    for part in [None, "train"] if split is None else [split]:
        x = next((name for name in [*_spelled(X_NAMES, part), part] if name in names), None)
        if x is not None:
            return x, next((name for name in _spelled(Y_NAMES, part) if name in names), None)
    if any(name in names for name in X_NAMES):
        check_undivided(path, split)
    only_test = any(name in names for name in [*_spelled(X_NAMES, "test"), "test"])
    if split is None and len(names) == 1 and not only_test:
        return names[0], None
    wanted = X_NAMES if split is None else [f"{name}_{split}" for name in X_NAMES]
    hint = ": pass split='test'" if split is None and only_test else ""
    raise ValueError(f"{path} must have images named one of {listed(wanted)}, got {listed(names)}{hint}")


def _spelled(names: Iterable[str], part: str | None) -> list[str]:
    """Names as they are for a part."""
    return [spelled for name in names for spelled in ([f"{name}_{part}", f"{part}_{name}"] if part else [name])]


def _as_images(name: str, a: np.ndarray) -> np.ndarray:
    a = _as_bytes(name, a)
    if a.ndim == 2 and a.shape[0] != a.shape[1]:  # one picture would otherwise be many small ones
        for channels in (1, 3):  # a number of pixels is one side squared, or three times that, and never both
            side = math.isqrt(a.shape[1] // channels)
            if channels * side**2 == a.shape[1]:
                return a.reshape(len(a), channels, side, side)
    elif a.ndim == 3:
        return a[:, None]
    elif a.ndim == 4:
        first, last = a.shape[1] in CHANNELS, a.shape[3] in CHANNELS
        if first and last:  # tiny images: what makes them square is right
            square = a.shape[2] == a.shape[3], a.shape[1] == a.shape[2]
            first, last = (square[0] and not square[1]), square[1]
        if first:
            return a
        if last:
            return np.moveaxis(a, 3, 1)
    raise ValueError(
        f"{name} must have the shape (N, H, W), (N, H, W, C) or (N, C, H, W) with C one of {CHANNELS}, or (N, pixels) "
        f"of square images, and not be in doubt, got {a.shape}"
    )


def _as_bytes(name: str, a: np.ndarray) -> np.ndarray:
    if a.dtype == np.uint8:
        return a
    if a.dtype.kind == "f":
        unit = a.size and a.min() >= 0 and a.max() <= 1
        how = "(255 * x).round().astype('uint8')" if unit else "x.astype('uint8'), if they are whole and from 0 to 255"
        raise ValueError(f"{name} must hold integers from 0 to 255, got {a.dtype}: save it as {how}")
    if a.dtype.kind not in "bui":
        raise ValueError(f"{name} must hold integers from 0 to 255, got {a.dtype}")
    if a.size and not (a.min() >= 0 and a.max() <= 255):
        raise ValueError(f"{name} must hold integers from 0 to 255, got values from {a.min()} to {a.max()}")
    return a.astype(np.uint8)


def _as_labels(name: str, a: np.ndarray) -> np.ndarray:
    if a.dtype.kind not in "bui":
        raise ValueError(f"{name} must hold integers, one label for each image, got {a.dtype}")
    if a.ndim == 2 and a.shape[1] == 1:
        a = a[:, 0]
    if a.ndim != 1:
        hint = ": of one-hot labels, save y.argmax(1)" if a.ndim == 2 else ""
        raise ValueError(f"{name} must have the shape (N,), one label for each image, got {a.shape}{hint}")
    return a


# CIFAR-10's batches


def has_batches(folder: Path) -> bool:
    return any((folder / name).is_file() for names in BATCHES.values() for name in _both(names))


def read_batches(path: Path, split: str | None) -> Arrays:
    """CIFAR-10, of the python or the binary version, in a tar file or a folder."""
    wanted = BATCHES[split or "train"]
    found = _folder_files(path, _both(wanted)) if path.is_dir() else _tar_files(path, _both(wanted))
    binary = any(name.endswith(".bin") for name in found) and not all(name in found for name in wanted)
    names = [f"{name}.bin" for name in wanted] if binary else list(wanted)
    absent = [name for name in names if name not in found]
    if absent:
        raise ValueError(f"{path} must hold CIFAR-10's {listed(names)}, and has no {listed(absent)}")
    parse = _binary_batch if binary else _pickled_batch
    parts = [parse(f"{name} of {path}", found.pop(name)) for name in names]
    x = np.concatenate([images for images, _ in parts]).reshape(-1, 3, SIDE, SIDE)
    return x, np.concatenate([labels for _, labels in parts])


def _both(names: Iterable[str]) -> list[str]:
    return [spelled for name in names for spelled in (name, f"{name}.bin")]


def _folder_files(path: Path, names: Iterable[str]) -> dict[str, bytes]:
    return {name: (path / name).read_bytes() for name in names if (path / name).is_file()}


def _tar_files(path: Path, names: Collection[str]) -> dict[str, bytes]:
    """What is in such files of an archive, in memory: nothing is extracted."""
    found: dict[str, bytes] = {}
    with readable(path), tarfile.open(path) as archive:
        for member in archive:  # read as they come: to go back would be to unpack again
            name = member.name.rpartition("/")[2]
            if name in names and member.isfile() and (file := archive.extractfile(member)) is not None:
                found.setdefault(name, file.read())
        while archive.fileobj and archive.fileobj.read(1 << 20):  # to the end, where gzip compares its checksum
            pass
    return found


def _binary_batch(name: str, data: bytes) -> tuple[np.ndarray, np.ndarray]:
    row = 1 + 3 * SIDE**2
    if not data or len(data) % row:
        raise ValueError(f"{name} is damaged: it must have a multiple of {row} bytes, got {len(data)}")
    rows = np.frombuffer(data, np.uint8).reshape(-1, row)
    return _checked(name, rows[:, 1:], rows[:, 0])


def _pickled_batch(name: str, data: bytes) -> tuple[np.ndarray, np.ndarray]:
    with readable(name):
        batch = _InertUnpickler(io.BytesIO(data), encoding="bytes").load()
        batch = {key.decode() if isinstance(key, bytes) else key: value for key, value in batch.items()}
        if not {"data", "labels"} <= batch.keys():
            raise ValueError(f"it must have data and labels, got {listed(list(batch))}")
        x, labels = _array_of(batch["data"]), np.array(batch["labels"], np.int64)
    return _checked(name, x, labels)


def _checked(name: str, x: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    if labels.ndim != 1 or x.shape != (len(labels), 3 * SIDE**2):
        raise ValueError(
            f"{name} must have {3 * SIDE**2} pixels and one label for each image, got arrays of shape {x.shape} and "
            f"{labels.shape}"
        )
    if labels.size and not 0 <= labels.min() <= labels.max() < CLASSES:
        raise ValueError(f"{name} must have labels from 0 to {CLASSES - 1}, got {labels.min()} to {labels.max()}")
    return x, labels


class _Inert:
    """What stands for NumPy's names in a pickle: it keeps what it is given and does nothing."""

    state: Any = None

    def __init__(self, *args: Any) -> None:
        self.args = args

    def __setstate__(self, state: Any) -> None:
        self.state = state


class _Encoded(_Inert, bytes):
    """Bytes as Python 3 writes them for Python 2: by the text that they are in latin1."""

    def __new__(cls, text: str, encoding: str) -> _Encoded:
        if encoding not in ("latin1", b"latin1"):
            raise pickle.UnpicklingError(f"bytes must be written as latin1, got {encoding!r}")
        return super().__new__(cls, text.encode("latin1"))


PICKLED = {
    ("numpy", "ndarray"): _Inert,
    ("numpy", "dtype"): _Inert,
    ("numpy.core.multiarray", "_reconstruct"): _Inert,
    ("numpy._core.multiarray", "_reconstruct"): _Inert,
    ("_codecs", "encode"): _Encoded,
}
"""The names that a pickle may refer to, and what they lead to in their place."""


class _InertUnpickler(pickle.Unpickler):
    """Reads lists, dictionaries, texts, numbers and arrays, and runs nothing: no name leads out of this file."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in PICKLED:
            raise pickle.UnpicklingError(f"it refers to {module}.{name}, which is refused, as it could run anything")
        return PICKLED[module, name]


def _array_of(inert: _Inert) -> np.ndarray:
    """The array that a pickle has described."""
    _, shape, dtype, by_column, raw = inert.state
    if dtype.args[0] not in ("u1", b"u1") or by_column:
        raise ValueError(f"its data must be of uint8 and written row by row, got {dtype.args[0]!r}")
    return np.frombuffer(raw, np.uint8).reshape(shape)
