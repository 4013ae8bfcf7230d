"""Parameters of `FlowDensity`: their checks, and defaults that depend on the size of the table."""

from __future__ import annotations

from collections.abc import Mapping
from numbers import Real
from typing import Any

from elflow._checks import check_choice, check_count, check_positive
from elflow.flows.named import FLOW_NAMES
from elflow.training import Recipe

__all__ = ["check_parameters", "default_options", "default_recipe", "default_whiten"]

MANY_FEATURES, VERY_MANY_FEATURES = 16, 32
"""Numbers of features from which a flow has fewer transformations, and from which it has wider hypernetworks."""
MIN_ROWS_PER_FEATURE = 100
"""Number of rows per feature below which training starts from a Gaussian, with strong weight decay and short rounds."""


def check_parameters(parameters: Mapping[str, Any]) -> None:
    """Check the parameters of `FlowDensity`, except those that `Recipe` checks."""
    check_choice("flow", parameters["flow"], FLOW_NAMES)
    check_choice("missing", parameters["missing"], ["error", "model"])
    check_choice("dequantization", parameters["dequantization"], ["uniform", "variational"])
    validation = parameters["validation"]
    if not isinstance(validation, Real) or not 0 < float(validation) < 1:
        raise ValueError(f"validation must be a fraction in (0, 1), got {validation!r}")
    if parameters["learning_rate"] is not None:
        check_positive("learning_rate", parameters["learning_rate"])
    if parameters["whiten"] not in (None, True, False):
        raise ValueError(f"whiten must be None, True or False, got {parameters['whiten']!r}")
    for name in ("columns", "flow_options"):
        if not isinstance(parameters[name], dict | None):
            raise TypeError(f"{name} must be a dictionary or None, got {parameters[name]!r}")


def default_options(flow: str, rows: int, features: int) -> dict[str, Any]:
    """Default arguments of a flow, for a table with this number of training rows and of features.

    Example:
        >>> default_options("elf", rows=10_000, features=5)
        {'transforms': 5, 'hidden_features': (128, 128), 'units': 16}
    """
    is_wide = features >= VERY_MANY_FEATURES and rows >= 50_000
    width = 256 if is_wide else 128 if rows >= 1_000 else 64
    is_shallow = features >= MANY_FEATURES or has_few_rows(rows, features)
    options: dict[str, Any] = {"transforms": 3 if is_shallow else 5, "hidden_features": (width, width)}
    if flow == "elf":
        return options | {"units": 8 if is_wide else 16}
    return options if flow in ("maf", "nsf") else {}


def default_whiten(rows: int, features: int) -> bool:
    """Whether linear correlations are removed before the flow."""
    return has_few_rows(rows, features)


def default_recipe(rows: int, features: int, **declared: Any) -> Recipe:
    """Default training settings, for a table with this number of training rows and of features.

    The fewer rows per feature, the stronger the weight decay, which reduces overfitting. The rules were selected by the
    held-out log-likelihood on seven tables.

    Arguments:
        rows: Number of training rows.
        features: Number of features.
        declared: Settings that replace the defaults; None keeps a default.

    Example:
        >>> default_recipe(rows=10_000, features=5, max_steps=None).max_steps
        20000
    """
    is_scarce = has_few_rows(rows, features)
    batch_size = declared.get("batch_size") or (128 if is_scarce else 256 if rows < 100_000 else 512)
    settings: dict[str, Any] = {
        "learning_rate": 1e-3 if is_scarce else 3e-3,
        "batch_size": batch_size,
        "round_steps": 20 if is_scarce else min(max(rows // batch_size, 50), 200),
        "max_steps": 20_000,
        "patience": 20,
        "plateau_patience": 5,
        "weight_decay": 5.0 if is_scarce else min(2.0, 1.5e5 * (features / rows) ** 2),
    }
    settings |= {name: value for name, value in declared.items() if value is not None}
    check_count("max_steps", settings["max_steps"])
    settings["round_steps"] = min(settings["round_steps"], settings["max_steps"])
    return Recipe(**settings)


def has_few_rows(rows: int, features: int) -> bool:
    """Whether a table has few rows for its number of features."""
    return rows < MIN_ROWS_PER_FEATURE * features
