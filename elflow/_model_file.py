"""Model files: safetensors with the weights, and the configuration as JSON in the header."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from elflow._files import replacing

__all__ = ["ModelFile", "fill_module", "name_file_in_errors", "read_model", "write_model"]

FORMAT = "elflow"
VERSION = 1
"""Version of the format, which increases when older versions of elflow can no longer read new files."""


@dataclass(frozen=True)
class ModelFile:
    """Content of a model file."""

    path: Path
    """The file."""
    class_name: str
    """Name of the class of the model."""
    config: dict[str, Any]
    """Configuration, from which `from_config` of that class builds an untrained model."""
    training: dict[str, Any] | None
    """Training record, if the file has one."""
    notes: dict[str, Any]
    """Notes of the user; empty if there are none."""
    tensors: dict[str, torch.Tensor]
    """The weights; empty if only the header was read."""


def write_model(
    path: Path,
    class_name: str,
    config: dict[str, Any],
    module: torch.nn.Module,
    training: dict[str, Any] | None = None,
    notes: dict[str, Any] | None = None,
    extra: dict[str, torch.Tensor] | None = None,
) -> None:
    """Write a model file atomically: after a failure, the old file is still there.

    Arguments:
        path: The file; an existing one is replaced.
        class_name: Name of the class of the model.
        config: Configuration, from which `from_config` of that class builds an untrained model, as JSON.
        module: The module with the weights.
        training: Training record, as JSON.
        notes: Notes of the user, as JSON.
        extra: Tensors to store besides the weights, by names that no weight has.
    """
    header = {"format": FORMAT, "format_version": str(VERSION), "flow": class_name}
    try:
        header["config"] = json.dumps(config, default=_encode_scalar)
        header |= {
            name: json.dumps(value) for name, value in (("training", training), ("notes", notes)) if value is not None
        }
    except TypeError as error:
        raise TypeError(f"configuration and notes of a model must be JSON, got a value that is not: {error}") from None
    tensors = {key: value.detach().contiguous() for key, value in module.state_dict().items()} | (extra or {})
    with replacing(path) as temporary:
        save_file(tensors, temporary, metadata=header)


def read_model(
    path: Path, device: str = "cpu", min_numbers: Callable[[str, dict[str, Any]], int] | None = None
) -> ModelFile:
    """Read a model file. Nothing in it is executed.

    Arguments:
        path: The file.
        device: Device of the tensors.
        min_numbers: Function of class name and configuration that returns a lower bound on the number of values of such
            a model. A file with fewer values is rejected before the model is built. None reads only the header.
    """
    if not path.is_file():
        raise FileNotFoundError(f"path must be an existing file, got {path}")
    tensors: dict[str, torch.Tensor] = {}
    try:
        with safe_open(path, framework="pt", device=device) as file:
            header = file.metadata() or {}
            class_name, config, training, notes = _parse_header(path, header)
            if min_numbers is not None:
                count = sum(math.prod(file.get_slice(key).get_shape()) for key in file.keys())  # noqa: SIM118
                with name_file_in_errors(path, "whose configuration and weights do not match"):
                    if (least := min_numbers(class_name, config)) > count:
                        raise ValueError(f"the configuration requires at least {least} values, got {count}")
                tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
    except SafetensorError as error:
        raise ValueError(
            f"path must be a model saved by elflow, got {path}, which is damaged or not a safetensors file: {error}"
        ) from None
    return ModelFile(path, class_name, config, training, notes, tensors)


def fill_module(module: torch.nn.Module, tensors: dict[str, torch.Tensor]) -> None:
    """Load weights into a module, and put it into evaluation mode."""
    if len({t.dtype for t in tensors.values() if t.is_floating_point()}) > 1:
        raise ValueError("all tensors must have the same dtype")
    module.load_state_dict(tensors, assign=True)
    module.eval()


@contextmanager
def name_file_in_errors(path: Path, problem: str) -> Iterator[None]:
    """Convert the errors that a damaged file causes while a model is built into one that names the file."""
    try:
        yield
    except (LookupError, TypeError, ValueError, RuntimeError, ArithmeticError, AttributeError) as error:
        raise ValueError(
            f"path must be a model saved by elflow, got {path}, {problem}: {str(error)[:300] or type(error).__name__}"
        ) from None


def _parse_header(
    path: Path, header: dict[str, str]
) -> tuple[str, dict[str, Any], dict[str, Any] | None, dict[str, Any]]:
    """Class name, configuration, training record and notes."""
    if header.get("format") != FORMAT:
        raise ValueError(f"path must be a model saved by elflow, got {path}, a safetensors file of another program")
    version = header.get("format_version", "")
    if version != str(VERSION):
        raise ValueError(
            f"path must be a file of format version {VERSION}, got {path} of version {version!r}: load it with "
            "the elflow version that saved it"
        )
    values: dict[str, Any] = {}
    for name in ("config", "training", "notes"):
        try:
            values[name] = json.loads(header[name]) if name in header else None
            if name in header and not isinstance(values[name], dict):
                raise ValueError(f"{name} must be an object, got {type(values[name]).__name__}")
        except (ValueError, RecursionError) as error:
            raise ValueError(
                f"path must be a model saved by elflow, got {path} with a damaged header: {str(error)[:300]}"
            ) from None
    if values["config"] is None:
        raise ValueError(f"path must be a model saved by elflow, got {path} with a damaged header: no configuration")
    return header.get("flow", ""), values["config"], values["training"], values["notes"] or {}


def _encode_scalar(value: Any) -> Any:
    """Convert a NumPy scalar to a number that JSON can store."""
    if getattr(value, "shape", None) == () and hasattr(value, "item"):
        return value.item()
    raise TypeError(f"{type(value).__name__} {value!r} is not a JSON value")
