"""Flows in files: one safetensors file each, with the configuration as JSON in its header."""

from __future__ import annotations

import json
import math
import os
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from elflow._files import replacing
from elflow.activations import PiecewiseQuadratic
from elflow.flows import ELF

__all__ = ["load", "save"]

FORMAT = "elflow"
VERSION = 1
"""Grows when a file can no longer be read by what came before."""
FLOWS: dict[str, type[ELF]] = {"ELF": ELF}
"""What can be saved, by the name in the file. Each has a `config` of the arguments that make another one."""


def save(flow: ELF, path: str | os.PathLike[str]) -> None:
    """Writes a flow to one file, whole or not at all.

    Arguments:
        flow: An `elflow.ELF`, on any device.
        path: Where to; a file that is there is replaced.

    Example:
        >>> import elflow, tempfile
        >>> flow = elflow.ELF(features=3)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     elflow.save(flow, f"{folder}/model.elf")
        ...     same = elflow.load(f"{folder}/model.elf")
        >>> x = torch.randn(5, 3)
        >>> torch.allclose(same().log_prob(x), flow.eval()().log_prob(x))
        True
    """
    name = type(flow).__name__
    if FLOWS.get(name) is not type(flow):
        raise TypeError(f"flow must be one of {list(FLOWS)} of elflow, got {name}")
    header = {
        "format": FORMAT,
        "format_version": str(VERSION),
        "flow": name,
        "config": json.dumps(flow.config, default=_as_json),
    }
    tensors = {key: value.detach().contiguous() for key, value in flow.state_dict().items() if not _is_mask(key)}
    with replacing(Path(path)) as temporary:
        save_file(tensors, temporary, metadata=header)


def load(path: str | os.PathLike[str], device: str | torch.device = "cpu") -> ELF:
    """Reads what `save` wrote, in evaluation mode. Nothing in the file is executed.

    Arguments:
        path: The file.
        device: Where to put the flow.
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"path must be a file, got {path}")
    try:
        with safe_open(path, framework="pt", device=str(device)) as file:
            header = file.metadata() or {}
            kind, config = _read_header(path, header)
            _check_size(path, config, sum(math.prod(file.get_slice(key).get_shape()) for key in file.keys()))  # noqa: SIM118
            tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
    except SafetensorError as error:
        raise ValueError(
            f"path must be a model saved by elflow, got {path}, which is damaged or foreign: {error}"
        ) from None
    with torch.random.fork_rng(devices=[]):  # what is drawn for the new flow is overwritten at once
        try:
            flow = kind(**config)
            masks = {key: value for key, value in flow.state_dict().items() if _is_mask(key)}
            if len({t.dtype for t in tensors.values() if t.is_floating_point()}) > 1:
                raise ValueError("its tensors have several dtypes")
            flow.load_state_dict(tensors | masks, assign=True)
        except (TypeError, ValueError, RuntimeError, OverflowError) as error:
            raise ValueError(
                f"path must be a model saved by elflow, got {path}, whose parts do not fit: {str(error)[:300]}"
            ) from None
    return flow.to(device).eval()


def _read_header(path: Path, header: dict[str, str]) -> tuple[type[ELF], dict[str, Any]]:
    if header.get("format") != FORMAT:
        raise ValueError(f"path must be a model saved by elflow, got {path}, a safetensors file of another origin")
    version = header.get("format_version", "")
    if version != str(VERSION):
        raise ValueError(
            f"path must be of format {VERSION}, got {path} of format {version!r}: use another elflow for it"
        )
    kind = FLOWS.get(header.get("flow", ""))
    try:
        config = json.loads(header.get("config", ""))
        if kind is None or not isinstance(config, dict):
            raise ValueError(f"flow {header.get('flow')!r}")
        config["activation"] = PiecewiseQuadratic(**config["activation"])
    except (KeyError, TypeError, ValueError, OverflowError, RecursionError) as error:
        raise ValueError(f"path must be a model saved by elflow, got {path} with a damaged header: {error}") from None
    return kind, config


def _is_mask(key: str) -> bool:
    """Masks follow from the configuration. Those in a file could only be wrong."""
    return key.endswith(".mask")


def _check_size(path: Path, config: dict[str, Any], numbers: int) -> None:
    """That the file holds as many numbers as such a flow has at least, before one is built."""
    try:
        widths = config["hidden_features"] if config["features"] > 1 or config["context"] else []
        layers = sum(a * b for a, b in pairwise(widths)) + config["features"] * config["units"]
        least = config["transforms"] * layers + config["context"]
        fits = config["features"] > 0 and all(width > 0 for width in widths) and least <= numbers
    except (KeyError, TypeError) as error:
        raise ValueError(f"path must be a model saved by elflow, got {path} with a damaged header: {error}") from None
    if not fits:
        raise ValueError(f"path must be a model saved by elflow, got {path}, whose parts do not fit: {numbers} numbers")


def _as_json(value: Any) -> Any:
    if isinstance(value, PiecewiseQuadratic):
        return {"breakpoints": value.breakpoints, "pieces": value.pieces, "name": value.name}
    raise TypeError(f"cannot save {value!r}")
