"""Configuration of a fitted density, as stored in a model file."""

from __future__ import annotations

from numbers import Integral
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from elflow._checks import check_count
from elflow.activations import PiecewiseQuadratic
from elflow.flows.named import min_numbers
from elflow.tabular._flow import MIXTURE_OPTIONS, build_model
from elflow.tabular.schema import Schema
from elflow.training import Training

if TYPE_CHECKING:
    from elflow.tabular.estimator import FlowDensity

__all__ = ["get_config", "min_config_numbers", "set_config"]

D = TypeVar("D", bound="FlowDensity")

FITTED = ["options_", "n_rows_", "n_parameters_", "seed_", "warnings_"]
"""Fitted attributes that are stored unchanged."""


def get_config(density: FlowDensity) -> dict[str, Any]:
    """Configuration of a fitted density for JSON: all but its weights and its training record."""
    seed = int(density.random_state) if isinstance(density.random_state, Integral) else None
    context_schema = density.context_schema_
    parameters = {**density.get_params(), "random_state": seed, "log_dir": None, "device": "auto"}
    return {
        "parameters": _encode_activations(parameters, "flow_options"),
        "schema": density.schema_.to_dict(),
        "context_schema": None if context_schema is None else context_schema.to_dict(),
        "fitted": _encode_activations({name: getattr(density, name) for name in FITTED}, "options_"),
        "hash_limit": None if density.row_hashes_ is None else density.row_hashes_.limit,
        "reference_scores": density.reference_scores_.tolist(),
    }


def set_config(density: D, config: dict[str, Any], training: dict[str, Any] | None) -> D:
    """Set the fitted attributes of a density from a configuration; its flow has initial weights."""
    if training is None:
        raise ValueError("a fitted density must have a training record, got none")
    density.training_ = Training.from_dict(training)
    density.schema_ = schema = Schema.from_dict(config["schema"])
    context_schema = config["context_schema"]
    density.context_schema_ = None if context_schema is None else Schema.from_dict(context_schema)
    for name in FITTED:
        setattr(density, name, config["fitted"][name])
    density.reference_scores_ = np.array(config["reference_scores"], np.float64)
    density.n_features_in_ = len(schema.columns) + len(schema.ignored)
    if schema.table != "numpy":
        density.feature_names_in_ = np.array([*schema.names, *schema.ignored], dtype=object)
    for options in (density.options_, density.flow_options or {}):
        if "activation" in options:
            options["activation"] = PiecewiseQuadratic(**options["activation"])
    density.model_ = build_model(
        density.flow, schema, density.context_schema_, density.options_, density.dequantization
    )
    return density


def min_config_numbers(config: dict[str, Any]) -> int:
    """Minimum number of numbers in the file of a density of this configuration, without building it."""
    schema = Schema.from_dict(config["schema"])
    context_schema = config["context_schema"]
    context = 0 if context_schema is None else Schema.from_dict(context_schema).context_features
    fitted = config["fitted"]["options_"]
    options = {key: value for key, value in fitted.items() if key not in MIXTURE_OPTIONS}
    features = check_count("features", schema.features)
    flow = min_numbers(config["parameters"]["flow"], features, context, options)
    return sum(features**2 if member == "gaussian" else flow for _, member in fitted["members"])


def _encode_activations(parts: dict[str, Any], name: str) -> dict[str, Any]:
    """The same dictionary, with the activation among the options `parts[name]` as JSON."""
    options = parts[name]
    if options and isinstance(options.get("activation"), PiecewiseQuadratic):
        return parts | {name: options | {"activation": options["activation"].to_dict()}}
    return parts
