"""Model files: one safetensors file with the weights, and JSON in its header."""

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

__all__ = ["ModelFile", "fill_module", "naming", "read_model", "write_model"]

FORMAT = "elflow"
VERSION = 1
"""Increases when older versions of elflow can no longer read new files."""


@dataclass(frozen=True)
class ModelFile:
    """The content of a model file."""

    path: Path
    kind: str
    """Name of the class of the model."""
    config: dict[str, Any]
    """What `from_config` of that class takes."""
    training: dict[str, Any] | None
    """The record of the training, if the file has one."""
    notes: dict[str, Any]
    """Whatever else was stored."""
    tensors: dict[str, torch.Tensor]


def write_model(
    path: Path,
    kind: str,
    config: dict[str, Any],
    module: torch.nn.Module,
    training: dict[str, Any] | None = None,
    notes: dict[str, Any] | None = None,
) -> None:
    """Writes a model file, whole or not at all.

    Arguments:
        path: The file; an existing one is replaced.
        kind: Name of the class of the model.
        config: What `from_config` of that class takes, as JSON.
        module: The module with the weights.
        training: The record of the training, as JSON.
        notes: Whatever else to store, as JSON.
    """
    header = {"format": FORMAT, "format_version": str(VERSION), "flow": kind}
    try:
        header["config"] = json.dumps(config)
        header |= {
            name: json.dumps(part) for name, part in (("training", training), ("notes", notes)) if part is not None
        }
    except TypeError as error:
        raise TypeError(f"configuration and notes of a model must be storable as JSON: {error}") from None
    tensors = {key: value.detach().contiguous() for key, value in module.state_dict().items()}
    with replacing(path) as temporary:
        save_file(tensors, temporary, metadata=header)


def read_model(
    path: Path, device: str = "cpu", min_numbers: Callable[[str, dict[str, Any]], int] | None = None
) -> ModelFile:
    """Reads a model file. Nothing in it is executed.

    Arguments:
        path: The file.
        device: Where to put the tensors.
        min_numbers: A function of kind and configuration that returns how many numbers such a model has at least. A
            file with fewer is refused before the tensors are read. None reads no tensors at all.
    """
    if not path.is_file():
        raise FileNotFoundError(f"path must be a file, got {path}")
    tensors: dict[str, torch.Tensor] = {}
    try:
        with safe_open(path, framework="pt", device=device) as file:
            header = file.metadata() or {}
            kind, config, training, notes = _parse_header(path, header)
            if min_numbers is not None:
                count = sum(math.prod(file.get_slice(key).get_shape()) for key in file.keys())  # noqa: SIM118
                with naming(path, "whose parts do not match"):
                    if min_numbers(kind, config) > count:
                        raise ValueError(f"{count} numbers are too few for the configuration")
                tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
    except SafetensorError as error:
        raise ValueError(
            f"path must be a model saved by elflow, got {path}, which is damaged or no safetensors file: {error}"
        ) from None
    return ModelFile(path, kind, config, training, notes, tensors)


def fill_module(module: torch.nn.Module, tensors: dict[str, torch.Tensor]) -> None:
    """Loads weights into a module, in evaluation mode."""
    if len({t.dtype for t in tensors.values() if t.is_floating_point()}) > 1:
        raise ValueError("the tensors have several dtypes")
    module.load_state_dict(tensors, assign=True)
    module.eval()


@contextmanager
def naming(path: Path, problem: str) -> Iterator[None]:
    """Turns any error of building a model into one that names the file."""
    try:
        yield
    except (LookupError, TypeError, ValueError, RuntimeError, ArithmeticError, AttributeError) as error:
        raise ValueError(
            f"path must be a model saved by elflow, got {path}, {problem}: {str(error)[:300] or type(error).__name__}"
        ) from None


def _parse_header(path: Path, header: dict[str, str]) -> tuple[str, dict[str, Any], Any, dict[str, Any]]:
    if header.get("format") != FORMAT:
        raise ValueError(f"path must be a model saved by elflow, got {path}, a safetensors file of another program")
    version = header.get("format_version", "")
    if version != str(VERSION):
        raise ValueError(
            f"path must be a file of format version {VERSION}, got {path} of version {version!r}: use another version "
            "of elflow to read it"
        )
    parts: dict[str, Any] = {}
    for name in ("config", "training", "notes"):
        try:
            parts[name] = json.loads(header[name]) if name in header else None
            if name in header and not isinstance(parts[name], dict):
                raise ValueError(f"{name} must be an object, got {type(parts[name]).__name__}")
        except (ValueError, RecursionError) as error:
            raise ValueError(
                f"path must be a model saved by elflow, got {path} with a damaged header: {str(error)[:300]}"
            ) from None
    if parts["config"] is None:
        raise ValueError(f"path must be a model saved by elflow, got {path} with a damaged header: no configuration")
    return header.get("flow", ""), parts["config"], parts["training"], parts["notes"] or {}
