"""Flows in files: one safetensors file each, with the configuration as JSON in its header."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable
from itertools import pairwise
from numbers import Integral
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from elflow._files import replacing
from elflow.activations import PiecewiseQuadratic
from elflow.flows import ELF, ImageELF

if TYPE_CHECKING:
    from elflow.tabular.estimator import FlowDensity

__all__ = ["load", "read_notes", "save"]

FORMAT = "elflow"
VERSION = 1
"""Grows when a file can no longer be read by what came before."""
FLOWS: dict[str, type[ELF | ImageELF]] = {"ELF": ELF, "ImageELF": ImageELF}
"""What can be saved, by the name in the file. Each has a `config` of the arguments that make another one."""

ESTIMATOR = "FlowDensity"
FITTED = ["options_", "history_", "seconds_", "stopped_", "n_rows_", "n_parameters_", "seed_", "fingerprint_"]
"""Which attributes of an estimator are kept as they are."""


def save(flow: ELF | ImageELF | FlowDensity, path: str | os.PathLike[str], notes: dict[str, Any] | None = None) -> None:
    """Writes a flow or a fitted density to one file, whole or not at all.

    Arguments:
        flow: An `elflow.ELF` or `elflow.ImageELF`, on any device, or a fitted `elflow.FlowDensity`.
        path: Where to; a file that is there is replaced.
        notes: What else the file is to say, of anything that JSON can hold: see `read_notes`.

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
    model: Any = flow
    module: torch.nn.Module
    if isinstance(flow, ELF | ImageELF) and FLOWS.get(name) is type(flow):
        config, module = flow.config, flow
    elif name == ESTIMATOR and hasattr(flow, "model_"):
        config, module = _estimator_config(model), model.model_
    else:
        raise TypeError(f"flow must be one of {list(FLOWS)} of elflow or a fitted {ESTIMATOR}, got {name}")
    try:
        text = json.dumps(config, default=_as_json)
    except TypeError as error:
        raise TypeError(f"a model must be made of arguments that JSON can hold to be saved: {error}") from None
    header = {"format": FORMAT, "format_version": str(VERSION), "flow": name, "config": text}
    if notes is not None:
        header["notes"] = json.dumps(notes)
    derived = _derived(module)
    tensors = {key: value.detach().contiguous() for key, value in module.state_dict().items() if key not in derived}
    with replacing(Path(path)) as temporary:
        save_file(tensors, temporary, metadata=header)


def load(path: str | os.PathLike[str], device: str | torch.device = "cpu") -> Any:
    """Reads what `save` wrote: a flow in evaluation mode, or a fitted `FlowDensity`. Nothing in the file is executed.

    Arguments:
        path: The file.
        device: Where to put a flow.
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"path must be a file, got {path}")
    try:
        with safe_open(path, framework="pt", device=str(device)) as file:
            header = file.metadata() or {}
            name, config = _read_header(path, header)
            numbers = sum(math.prod(file.get_slice(key).get_shape()) for key in file.keys())  # noqa: SIM118
            if name in LEAST_NUMBERS:
                _check_size(path, LEAST_NUMBERS[name], config, numbers)
            tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
    except SafetensorError as error:
        raise ValueError(
            f"path must be a model saved by elflow, got {path}, which is damaged or foreign: {error}"
        ) from None
    with torch.random.fork_rng(devices=[]):  # what is drawn for the new flow is overwritten at once
        try:
            if name == ESTIMATOR:
                estimator = _estimator(path, config, numbers)
                _fill(estimator.model_, tensors)
                return estimator
            flow = FLOWS[name](**config)
            _fill(flow, tensors)
        except (LookupError, TypeError, ValueError, RuntimeError, ArithmeticError, AttributeError) as error:
            raise ValueError(
                f"path must be a model saved by elflow, got {path}, whose parts do not fit: {str(error)[:300]}"
            ) from None
    return flow.to(device).eval()


def read_notes(path: str | os.PathLike[str]) -> dict[str, Any]:
    """What was noted in a file when it was saved; nothing if it is no such file."""
    try:
        with safe_open(path, framework="pt") as file:
            notes = json.loads((file.metadata() or {}).get("notes", "{}"))
    except (SafetensorError, OSError, ValueError, RecursionError):
        return {}
    return notes if isinstance(notes, dict) else {}


def _fill(module: torch.nn.Module, tensors: dict[str, torch.Tensor]) -> None:
    derived = _derived(module)
    kept = {key: value for key, value in module.state_dict().items() if key in derived}
    floats = {t.dtype for t in tensors.values() if t.is_floating_point()}
    if len(floats) > 1:
        raise ValueError("its tensors have several dtypes")
    module.load_state_dict(tensors | kept, assign=True)
    module.eval()


def _derived(module: torch.nn.Module) -> set[str]:
    """The masks of ELFs, which follow from the configuration: those in a file could only be wrong."""
    flows = {f"{name}." if name else "" for name, part in module.named_modules() if isinstance(part, ELF)}
    keys = module.state_dict().keys()
    return {key for key in keys if key.endswith(".mask") and any(key.startswith(prefix) for prefix in flows)}


def _read_header(path: Path, header: dict[str, str]) -> tuple[str, dict[str, Any]]:
    if header.get("format") != FORMAT:
        raise ValueError(f"path must be a model saved by elflow, got {path}, a safetensors file of another origin")
    version = header.get("format_version", "")
    if version != str(VERSION):
        raise ValueError(
            f"path must be of format {VERSION}, got {path} of format {version!r}: use another elflow for it"
        )
    name = header.get("flow", "")
    try:
        config = json.loads(header.get("config", ""))
        if name not in (*FLOWS, ESTIMATOR) or not isinstance(config, dict):
            raise ValueError(f"flow {name!r}")
        if name in FLOWS:
            config["activation"] = PiecewiseQuadratic(**config["activation"])
    except (KeyError, TypeError, ValueError, OverflowError, RecursionError) as error:
        raise ValueError(f"path must be a model saved by elflow, got {path} with a damaged header: {error}") from None
    return name, config


def _estimator_config(estimator: FlowDensity) -> dict[str, Any]:
    """All that a fitted density consists of but its weights."""
    conditions = estimator.context_schema_
    return {
        "parameters": {**estimator.get_params(), "random_state": _seed(estimator.random_state), "logger": None},
        "schema": estimator.schema_.to_dict(),
        "context_schema": None if conditions is None else conditions.to_dict(),
        "fitted": {name: getattr(estimator, name) for name in FITTED},
        "training_scores": estimator.training_scores_.tolist(),
    }


def _seed(random_state: Any) -> int | None:
    """What of a random state a file can hold."""
    return int(random_state) if isinstance(random_state, Integral) else None


def _estimator(path: Path, config: dict[str, Any], numbers: int) -> FlowDensity:
    """The density of which this is the configuration, with fresh weights."""
    import numpy as np

    from elflow.tabular._flow import build
    from elflow.tabular.estimator import FlowDensity
    from elflow.tabular.schema import Schema

    estimator = FlowDensity(**config["parameters"])
    estimator.schema_ = schema = Schema.from_dict(config["schema"])
    conditions = config["context_schema"]
    estimator.context_schema_ = None if conditions is None else Schema.from_dict(conditions)
    for name in FITTED:
        setattr(estimator, name, config["fitted"][name])
    estimator.training_scores_ = np.array(config["training_scores"], np.float64)
    estimator.n_features_in_ = len(schema.columns)
    if schema.table != "numpy":
        estimator.feature_names_in_ = np.array(schema.names, dtype=object)
    for options in (estimator.options_, estimator.flow_options or {}):
        if "activation" in options:
            options["activation"] = PiecewiseQuadratic(**options["activation"])
    if not isinstance(estimator.history_, list) or not estimator.history_:
        raise ValueError("a history must have rounds")
    context = 0 if estimator.context_schema_ is None else estimator.context_schema_.context_features
    sizes = {"transforms": 1, "units": estimator.options_.get("bins", 1), "hidden_features": ()} | estimator.options_
    _check_size(path, _least_of_table, {"features": schema.features, "context": context, **sizes}, numbers)
    estimator.model_ = build(
        estimator.flow, schema, estimator.context_schema_, estimator.options_, estimator.dequantization
    )
    return estimator


def _least_of_table(config: dict[str, Any]) -> int:
    """How many numbers an `ELF` has at least; -1 if there is none such."""
    features, context, hidden = config["features"], config["context"], config["hidden_features"]
    has_network = hidden and (features > 1 or context)
    widths = [features + context, *hidden, features - 1 or 1] if has_network else []
    layers = sum(a * b for a, b in pairwise(widths)) + features * config["units"]
    return config["transforms"] * layers if features > 0 and all(width > 0 for width in widths) else -1


def _least_of_images(config: dict[str, Any]) -> int:
    """The same of an `ImageELF`."""
    channels, context = config["channels"], config["classes"] + config["context"]
    layer = config["blocks"] * channels * (5 * channels + context) + channels * config["units"]
    sizes = [*config["shape"], *(config[name] for name in ("scales", "transforms", "units", "channels", "blocks"))]
    if not all(isinstance(size, int) and size > 0 for size in sizes) or config["scales"] > MOST_SCALES:
        return -1
    return 2 * math.prod(config["shape"]) + config["scales"] * config["transforms"] * layer


MOST_SCALES = 32
LEAST_NUMBERS = {"ELF": _least_of_table, "ImageELF": _least_of_images}


def _check_size(path: Path, least_of: Callable[[dict[str, Any]], int], config: dict[str, Any], numbers: int) -> None:
    """That the file holds as many numbers as such a flow has at least, before one is built."""
    try:
        fits = 0 <= least_of(config) <= numbers
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise ValueError(f"path must be a model saved by elflow, got {path} with a damaged header: {error}") from None
    if not fits:
        raise ValueError(f"path must be a model saved by elflow, got {path}, whose parts do not fit: {numbers} numbers")


def _as_json(value: Any) -> Any:
    if isinstance(value, PiecewiseQuadratic):
        return {"breakpoints": value.breakpoints, "pieces": value.pieces, "name": value.name}
    raise TypeError(f"cannot save {value!r}")
