"""Configuration of a fitted density, as stored in a model file."""

from __future__ import annotations

from numbers import Integral
from typing import TYPE_CHECKING, Any, TypedDict, TypeVar

import numpy as np

from elflow._json_types import check_arguments, check_json
from elflow._sizes import check_integers
from elflow.activations import PiecewiseQuadratic
from elflow.flows.named import check_options
from elflow.flows.tilted import MAX_TABLES
from elflow.tabular._flow import MIXTURE_OPTIONS, build_model
from elflow.tabular.fitting._defaults import MAX_GROUPS, check_parameters
from elflow.tabular.schema import Schema
from elflow.training import Training

if TYPE_CHECKING:
    from elflow.tabular.estimator import FlowDensity

__all__ = ["build_density", "check_config", "encode_parameters", "encode_seed", "get_config", "set_config"]

D = TypeVar("D", bound="FlowDensity")


class Fitted(TypedDict):
    """Fitted attributes that are stored unchanged."""

    options_: dict[str, Any]
    n_rows_: int
    n_parameters_: int
    seed_: int
    warnings_: list[str]


class OptionalMixtureOptions(TypedDict, total=False):
    """Options that not every mixture has; `NotRequired` has no effect on annotations that are strings."""

    strata: int
    groups: int
    tables: list[list[int]]


class MixtureOptions(OptionalMixtureOptions):
    """Options of a mixture."""

    members: list[tuple[int, str]]
    components: int


class Config(TypedDict):
    """Configuration of a fitted density."""

    parameters: dict[str, Any]
    schema: Schema
    context_schema: Schema | None
    fitted: Fitted
    hash_limit: int | None
    reference_scores: list[float]


def get_config(density: FlowDensity) -> dict[str, Any]:
    """Configuration of a fitted density for JSON: all but its weights and its training record."""
    context_schema = density.context_schema_
    return {
        "parameters": encode_parameters(density),
        "schema": density.schema_.to_dict(),
        "context_schema": None if context_schema is None else context_schema.to_dict(),
        "fitted": _encode_activations({name: getattr(density, name) for name in Fitted.__annotations__}, "options_"),
        "hash_limit": None if density.row_hashes_ is None else density.row_hashes_.limit,
        "reference_scores": density.reference_scores_.tolist(),
    }


def encode_parameters(density: FlowDensity) -> dict[str, Any]:
    """Parameters of a density for JSON, except those of the machine that fitted it."""
    seed = encode_seed(density.random_state)
    parameters = {**density.get_params(), "random_state": seed, "log_dir": None, "device": "auto"}
    if density.columns is not None:  # a schema knows columns by the text of their labels, which may be tuples
        parameters["columns"] = {str(name): declaration for name, declaration in density.columns.items()}
    return _encode_activations(parameters, "flow_options")


def encode_seed(random_state: int | np.random.RandomState | None) -> int | None:
    """A seed for JSON; None for a generator, which has no seed."""
    return int(random_state) if isinstance(random_state, Integral) else None


def build_density(kind: type[D], parameters: dict[str, Any], path: str) -> D:
    """Build an unfitted density from parameters that `encode_parameters` returned.

    Arguments:
        kind: The class `FlowDensity`.
        parameters: The parameters, from JSON.
        path: Their name in errors.
    """
    _check_types(kind, parameters, path)
    density = kind(**parameters)
    try:
        check_parameters(density.get_params())
    except (TypeError, ValueError) as error:
        raise ValueError(f"{path}.{error}") from None
    _decode_activation(density.flow_options)
    return density


def set_config(density: D, config: dict[str, Any], training: dict[str, Any] | None) -> D:
    """Set the fitted attributes of a density from a configuration; its flow has initial weights."""
    if training is None:
        raise ValueError("a fitted density must have a training record, got none")
    density.training_ = Training.from_dict(training)
    density.schema_ = schema = Schema.from_dict(config["schema"])
    context_schema = config["context_schema"]
    density.context_schema_ = None if context_schema is None else Schema.from_dict(context_schema)
    for name in Fitted.__annotations__:
        setattr(density, name, config["fitted"][name])
    density.reference_scores_ = np.array(config["reference_scores"], np.float64)
    density.n_features_in_ = len(schema.columns) + len(schema.ignored)
    if schema.table != "numpy":
        density.feature_names_in_ = np.array([*schema.names, *schema.ignored], dtype=object)
    for options in (density.options_, density.flow_options):
        _decode_activation(options)
    density.model_ = build_model(
        density.flow, schema, density.context_schema_, density.options_, density.dequantization
    )
    return density


def check_config(density: type[FlowDensity], config: dict[str, Any], n_values: int) -> None:
    """Raise an error that names the first entry of a configuration whose type or size is wrong.

    Arguments:
        density: The class `FlowDensity`.
        config: The configuration, from JSON.
        n_values: Number of values of the weights in the same file.
    """
    check_json(config, Config, "config")
    parameters, options = config["parameters"], config["fitted"]["options_"]
    _check_types(density, parameters, "config.parameters")
    mixture = {name: value for name, value in options.items() if name in MIXTURE_OPTIONS}
    check_json(mixture, MixtureOptions, "config.fitted.options_")
    if "strata" not in mixture and any(name == "strata" for _, name in mixture["members"]):
        raise ValueError("config.fitted.options_ has no entry strata, which its members need")
    if mixture.get("groups", 0) > MAX_GROUPS:  # checks of more would take long
        raise ValueError(f"config.fitted.options_.groups must be at most {MAX_GROUPS}, got {mixture['groups']}")
    _check_tables(mixture.get("tables", []), "config.fitted.options_.tables")
    arguments = {name: value for name, value in options.items() if name not in MIXTURE_OPTIONS}
    check_options(parameters["flow"], arguments, "config.fitted.options_")
    check_integers(options, n_values, "config.fitted.options_")


def _check_tables(tables: list[list[int]], path: str) -> None:
    """Raise an error unless tables of factors are over one or two features each."""
    if len(tables) > MAX_TABLES:
        raise ValueError(f"{path} must be at most {MAX_TABLES}, got {len(tables)}")
    for k, table in enumerate(tables):
        if not 1 <= len(table) <= 2 or len({*table}) < len(table):
            raise ValueError(f"{path}[{k}] must have one or two different features, got {table}")


def _check_types(density: type[FlowDensity], parameters: dict[str, Any], path: str) -> None:
    """Raise an error that names the first parameter whose type is wrong."""
    check_arguments(density, parameters, path)
    if parameters.get("log_dir") is not None:  # a file must not choose where a new fit would write
        raise ValueError(f"{path}.log_dir must be null, got {str(parameters['log_dir'])[:60]!r}")
    if (options := parameters.get("flow_options")) is not None:
        check_options(parameters.get("flow", ""), options, f"{path}.flow_options")


def _decode_activation(options: dict[str, Any] | None) -> None:
    """Replace the activation among options from JSON by an object."""
    if options and "activation" in options:
        options["activation"] = PiecewiseQuadratic(**options["activation"])


def _encode_activations(parts: dict[str, Any], name: str) -> dict[str, Any]:
    """The same dictionary, with the activation among the options `parts[name]` as JSON."""
    options = parts[name]
    if options and isinstance(options.get("activation"), PiecewiseQuadratic):
        return parts | {name: options | {"activation": options["activation"].to_dict()}}
    return parts
