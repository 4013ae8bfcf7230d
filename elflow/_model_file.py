"""Model files: safetensors with the weights, and configuration, digest and known scores in the header.

The page "The file format" of the documentation is the specification.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from elflow import __version__
from elflow._digest import BLANK, compute_digest, seal_file
from elflow._files import replacing
from elflow._json_types import check_json

__all__ = ["ModelFile", "encode_json", "fill_module", "name_file_in_errors", "read_model", "write_model"]

FORMAT = "elflow"
VERSION = 2
"""Version of the format, which increases when older versions of elflow would misread new files."""
JSON_ENTRIES = {
    "config": dict[str, Any],
    "training": dict[str, Any],
    "notes": dict[str, Any],
    "known_scores": list[float | None],
    "saved_by": dict[str, str],
    "held_out": dict[str, Any],
}
"""Entries of the header that hold JSON, and their types."""


@dataclass(frozen=True)
class ModelFile:
    """Content of a model file."""

    path: Path
    """The file."""
    version: int
    """Version of the format."""
    class_name: str
    """Name of the class of the model."""
    config: dict[str, Any]
    """Configuration, from which an untrained model is built."""
    training: dict[str, Any] | None
    """Training record, if the file has one."""
    notes: dict[str, Any]
    """Notes of the user; empty if there are none."""
    known_scores: list[float | None] | None
    """Scores of fixed points, computed when the file was written; None in files of version 1."""
    saved_by: dict[str, str]
    """Versions of the programs that wrote the file; empty in files of version 1."""
    digest: str | None
    """SHA-256 of the file, which has been checked; None in files of version 1."""
    tensors: dict[str, Tensor]
    """The weights; empty if only the header was read."""
    held_out: dict[str, Any] | None = None
    """Counts of held-out rows in bins; None in files without them."""

    @property
    def n_values(self) -> int:
        """Number of values of all tensors."""
        return sum(tensor.numel() for tensor in self.tensors.values())


def write_model(
    path: Path,
    class_name: str,
    config: dict[str, Any],
    module: nn.Module,
    training: dict[str, Any] | None = None,
    notes: dict[str, Any] | None = None,
    extra: dict[str, Tensor] | None = None,
    known_scores: Sequence[float | None] | None = None,
    held_out: Mapping[str, Any] | None = None,
) -> None:
    """Write a model file atomically: after a failure, the old file is still there.

    Arguments:
        path: The file; an existing one is replaced.
        class_name: Name of the class of the model.
        config: Configuration, from which an untrained model is built, as JSON.
        module: The module with the weights.
        training: Training record, as JSON.
        notes: Notes of the user, as JSON.
        extra: Tensors to store besides the weights, by names that no weight has.
        known_scores: Scores of fixed points, by which a reader verifies its own computation.
        held_out: Counts of held-out rows in bins, as JSON.
    """
    header = {"format": FORMAT, "format_version": str(VERSION), "flow": class_name, "digest": BLANK}
    entries = {
        "config": config,
        "training": training,
        "notes": notes,
        "known_scores": None if known_scores is None else list(known_scores),
        "saved_by": {"elflow": __version__, "torch": torch.__version__},
        "held_out": held_out,
    }
    header |= {name: encode_json(value) for name, value in entries.items() if value is not None}
    constants = find_constants(module)
    weights = {key: value for key, value in module.state_dict().items() if key not in constants}
    _check_values(weights)
    tensors = {key: value.detach().contiguous() for key, value in weights.items()} | (extra or {})
    with replacing(path) as temporary:
        try:
            save_file(tensors, temporary, metadata=header)
        except SafetensorError as error:
            if (match := re.search(r"os error (\d+)", str(error))) is None:
                raise
            raise OSError(int(match[1]), os.strerror(int(match[1])), str(temporary)) from None
        position = _find_digest(temporary, BLANK)
        assert position is not None
        seal_file(temporary, position)


def read_model(path: Path, header_only: bool = False) -> ModelFile:
    """Read a model file, and check its digest. Nothing in it is executed.

    Arguments:
        path: The file.
        header_only: Whether to leave out the weights.
    """
    if not path.is_file():
        raise FileNotFoundError(f"path must be an existing file, got {path}")
    tensors: dict[str, Tensor] = {}
    try:
        with safe_open(path, framework="pt", device="cpu") as file:
            header = file.metadata() or {}
            version = _check_format(path, header)
            _check_digest(path, header, version)
            entries = _parse_entries(path, header)
            if not header_only:
                tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
    except SafetensorError as error:
        raise ValueError(
            f"path must be a model saved by elflow, got {path}, which is damaged or not a safetensors file: {error}"
        ) from None
    return ModelFile(
        path,
        version,
        header.get("flow", ""),
        entries["config"],
        entries["training"],
        entries["notes"] or {},
        entries["known_scores"],
        entries["saved_by"] or {},
        header.get("digest"),
        tensors,
        entries["held_out"],
    )


def fill_module(module: nn.Module, tensors: dict[str, Tensor], version: int = VERSION) -> None:
    """Load weights into a module, and put it into evaluation mode. Constants stay as they were built.

    Arguments:
        module: The module.
        tensors: The weights by name, all of the same float dtype.
        version: Version of the format of the file that they are from; files of version 1 also have constants.
    """
    constants, expected = find_constants(module), module.state_dict()
    if version == 1:
        tensors = {key: value for key, value in tensors.items() if key not in constants}
    floats = {value.dtype for value in tensors.values() if value.is_floating_point()}
    if len(floats) > 1:
        raise ValueError(f"all tensors must have the same dtype, got {sorted(map(str, floats))}")
    for key, value in tensors.items():
        if key not in expected or key in constants:
            continue  # load_state_dict refuses it
        built = expected[key]
        if value.dtype != built.dtype and not (value.is_floating_point() and built.is_floating_point()):
            raise ValueError(f"{key} must have the dtype {built.dtype}, got {value.dtype}")
    _check_values(tensors)
    dtype = next(iter(floats), None)
    rebuilt = {key: expected[key].to(dtype if expected[key].is_floating_point() else None) for key in constants}
    if both := [key for key in constants if key in tensors]:
        raise ValueError(f"tensors must not include the constants of the model, got {both[:3]}")
    module.load_state_dict(tensors | rebuilt, assign=True)
    module.eval()


def find_constants(module: nn.Module) -> set[str]:
    """Names of the buffers that follow from the configuration, and are therefore not stored in files.

    These are the buffers of zuko's modules: base distributions, masks and orders. Orders that were drawn at random are
    no constants: the flow that has them has the attribute `has_random_order`.
    """
    return set(_iter_constants(module, "", False))


def _iter_constants(module: nn.Module, prefix: str, is_random: bool) -> Iterator[str]:
    is_random = is_random or bool(getattr(module, "has_random_order", False))
    if type(module).__module__.partition(".")[0] == "zuko":
        for name, buffer in module._buffers.items():
            is_stored = buffer is not None and name not in module._non_persistent_buffers_set
            if is_stored and not (is_random and name in ("mask", "order")):
                yield prefix + name
    for name, child in module.named_children():
        yield from _iter_constants(child, f"{prefix}{name}.", is_random)


def _check_values(weights: dict[str, Tensor]) -> None:
    """Raise an error that names a tensor with a value that is not finite, or weights of a mixture that are none."""
    for key, value in weights.items():
        if key.rpartition(".")[2] == "log_weights":  # the logarithm of a zero weight is infinite
            if not math.isclose(float(value.double().exp().sum()), 1.0, abs_tol=1e-3):
                raise ValueError(f"weights of a mixture must add up to 1, got others in {key}")
        elif value.is_floating_point() and not value.isfinite().all():
            raise ValueError(f"weights must be finite, got NaN or infinite values in {key}")


@contextmanager
def name_file_in_errors(path: Path, problem: str) -> Iterator[None]:
    """Convert the errors that a damaged file causes while a model is built into one that names the file."""
    try:
        yield
    except (LookupError, TypeError, ValueError, RuntimeError, ArithmeticError, AttributeError, AssertionError) as error:
        raise ValueError(
            f"path must be a model saved by elflow, got {path}, {problem}: {str(error)[:300] or type(error).__name__}"
        ) from None


def _check_format(path: Path, header: dict[str, str]) -> int:
    """Version of the format."""
    if header.get("format") != FORMAT:
        raise ValueError(f"path must be a model saved by elflow, got {path}, a safetensors file of another program")
    version = header.get("format_version", "")
    known = [str(number) for number in range(1, VERSION + 1)]
    if version not in known:
        raise ValueError(
            f"path must be a file of format version {' or '.join(known)}, got {path} of version {version!r}: load it "
            "with the elflow version that saved it, or a newer one"
        )
    return int(version)


def _check_digest(path: Path, header: dict[str, str], version: int) -> None:
    """Raise an error if a file is not as it was written. Files of version 1 have no digest."""
    digest = header.get("digest")
    if digest is None and version == 1:
        return
    position = None if digest is None else _find_digest(path, digest)
    if position is None or compute_digest(path, position) != digest:
        raise ValueError(
            f"path must be a model saved by elflow, got {path}, which is damaged: its content has changed since it was "
            "saved, and does not match its digest"
        )


def _find_digest(path: Path, digest: str) -> int | None:
    """Position of the digest in a file; None unless there is exactly one."""
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        start = b'"digest":"'
        header = file.read(length)
    # Quotation marks inside of other entries are escaped.
    if header.count(start) != 1 or len(digest) != len(BLANK):
        return None
    position = header.index(start) + len(start)
    return 8 + position if header[position : position + len(digest)] == digest.encode() else None


def _parse_entries(path: Path, header: dict[str, str]) -> dict[str, Any]:
    """Values of the entries of the header that hold JSON; None for those that are left out."""
    values: dict[str, Any] = {}
    for name, hint in JSON_ENTRIES.items():
        try:
            values[name] = json.loads(header[name]) if name in header else None
            if name in header or name == "config":
                check_json(values[name], hint, name)
        except (ValueError, RecursionError) as error:
            raise ValueError(
                f"path must be a model saved by elflow, got {path} with a damaged header: {str(error)[:300]}"
            ) from None
    return values


def encode_json(value: object) -> str:
    """A part of a model as JSON, in which NumPy's scalars are numbers.

    Example:
        >>> encode_json({"units": torch.tensor(4)})
        '{"units": 4}'
    """
    try:
        return json.dumps(value, default=_encode_scalar)
    except TypeError as error:
        raise TypeError(f"configuration and notes of a model must be JSON, got a value that is not: {error}") from None


def _encode_scalar(value: Any) -> Any:
    """Convert a NumPy scalar to a number that JSON can store."""
    if getattr(value, "shape", None) == () and hasattr(value, "item"):
        return value.item()
    raise TypeError(f"{type(value).__name__} {value!r} is not a JSON value")
