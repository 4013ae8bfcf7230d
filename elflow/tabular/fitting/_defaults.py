"""Parameters of `FlowDensity`: their checks, and defaults that depend on the size of the table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from numbers import Real
from typing import Any

from elflow._checks import check_choice, check_count, check_positive
from elflow.flows.mixture import N_COMPONENTS
from elflow.flows.named import FLOW_NAMES
from elflow.training import PRECISIONS, Recipe, choose_device

__all__ = ["GAUSSIANS", "MAX_GROUPS", "MEMBERS", "check_parameters", "default_recipe", "resolve_settings"]

FEW_FEATURES, MANY_FEATURES, VERY_MANY_FEATURES = 5, 16, 32
"""Number of features up to which, and numbers from which, flows have other sizes."""
MEMBERS = ["cholesky", "identity", "plain", "gaussian", "strata"]
"""Members of the mixture: flows by the start of the linear layer before them, a flow without one, and Gaussians."""
GAUSSIANS = ["gaussian", "strata"]
"""Members that are no flows: Gaussians of all rows, and of groups of categories."""
MIN_ENSEMBLE_ROWS = 1_000
"""Minimum number of training rows with which the mixture has a third flow."""
MAX_ENSEMBLE_ROWS = 20_000
"""Maximum number of training rows with which all flows of the mixture are trained to the end."""
MAX_GROUPS = 32
"""Maximum number of groups of categories whose rows are standardised before all members but `"strata"`."""
RACE_SHARE = 0.1
"""Share of the training after which, with more rows, only the better flow is trained further."""
MIN_STEPS, MAX_STEPS, STEPS_PER_ROOT_ROW = 500, 20_000, 20
"""Minimum and maximum of the default number of training steps, and its ratio to the root of the number of rows."""
N_ROUNDS, N_EARLY_ROUNDS = 30, 3
"""Number of rounds of a training, except that rounds have at most 200 steps, and of earlier ones within the first."""
DECAY_PER_FEATURE, MAX_DECAY = 600.0, 5.0
"""Weight decay, times the number of rows per feature, and its maximum."""
MIN_ROWS_PER_FEATURE = 100
"""Number of rows per feature below which training has small batches and a low learning rate."""


def check_parameters(parameters: Mapping[str, Any]) -> None:
    """Check the parameters of `FlowDensity`, except those that `Recipe` checks."""
    check_choice("flow", parameters["flow"], FLOW_NAMES)
    check_choice("missing", parameters["missing"], ["error", "model"])
    check_choice("dequantization", parameters["dequantization"], ["auto", "uniform", "gaussian", "variational"])
    choose_device(parameters["device"])
    check_choice("precision", parameters["precision"], PRECISIONS)
    validation = parameters["validation"]
    if not isinstance(validation, Real) or not 0 < float(validation) < 1:
        raise ValueError(f"validation must be a fraction in (0, 1), got {validation!r}")
    if parameters["learning_rate"] is not None:
        check_positive("learning_rate", parameters["learning_rate"])
    check_members(parameters["members"])
    for name in ("columns", "flow_options"):
        if not isinstance(parameters[name], dict | None):
            raise TypeError(f"{name} must be a dictionary or None, got {parameters[name]!r}")


def check_members(members: object) -> None:
    """Check the members of the mixture: a sequence of names, one of which is that of a flow."""
    if members is None:
        return
    names = [] if isinstance(members, str) or not isinstance(members, Sequence) else list(members)
    has_flow = any(name not in GAUSSIANS for name in names)
    if not has_flow or any(names.count(name) > 1 for name in GAUSSIANS) or any(name not in MEMBERS for name in names):
        raise ValueError(
            f"members must be None or a list of {MEMBERS}, with at least one flow, and with 'gaussian' and 'strata' at "
            f"most once, got {members!r}"
        )


def resolve_settings(
    parameters: Mapping[str, Any], rows: int, features: int, context: int, has_categories: bool = False
) -> tuple[dict[str, Any], Recipe]:
    """Arguments of the flow and training settings, with defaults for parameters of `FlowDensity` that are None.

    Arguments:
        parameters: Parameters of `FlowDensity`, checked.
        rows: Number of training rows.
        features: Number of features.
        context: Number of features of the context.
        has_categories: Whether the table has categories by which Gaussians may differ.
    """
    members = list(parameters["members"] or default_members(rows, features, context, has_categories))
    flows = [member for member in members if member not in GAUSSIANS]
    names = ("learning_rate", "schedule", "weight_decay", "batch_size", "max_steps", "patience", "time_limit")
    declared = {name: parameters[name] for name in names}
    recipe = default_recipe(rows, features, optimizer=default_optimizers(flows, rows), **declared)
    options = default_options(parameters["flow"], rows, features) | (parameters["flow_options"] or {})
    options["members"] = [[position, member] for position, member in enumerate(flows)]
    if "gaussian" in members:
        options["members"].append([len(flows), "gaussian"])
    options["components"] = 1 if context else N_COMPONENTS[-1]
    if "strata" in members:
        if context or not has_categories:
            lacks = "a context" if context else "no column of categories without missing values"
            raise ValueError(f"members must be without 'strata' for a table with {lacks}, got {members!r}")
        options["members"].append([len(options["members"]), "strata"])
        options |= {"strata": N_COMPONENTS[-1], "groups": MAX_GROUPS}
    return options, recipe


def default_options(flow: str, rows: int, features: int) -> dict[str, Any]:
    """Default arguments of a flow, for a table with this number of training rows and of features.

    Example:
        >>> default_options("elf", rows=10_000, features=5)
        {'transforms': 3, 'hidden_features': (128, 128), 'units': 32}
    """
    is_wide = features >= VERY_MANY_FEATURES and rows >= 50_000
    width = 256 if is_wide else 128 if rows >= 1_000 else 64
    is_shallow = features >= MANY_FEATURES or has_few_rows(rows, features)
    if flow == "elf" and features <= FEW_FEATURES:
        # Few columns need fewer transformations to see each other in both orders, but networks of more units.
        return {"transforms": 3, "hidden_features": (width, width), "units": 32}
    options: dict[str, Any] = {"transforms": 3 if is_shallow else 5, "hidden_features": (width, width)}
    if flow == "elf":
        return options | {"units": 8 if is_wide else 16}
    return options if flow in ("maf", "nsf") else {}


def default_members(rows: int, features: int, context: int, has_categories: bool = False) -> list[str]:
    """Default members of the mixture: flows that differ in start, order and optimizer, and Gaussian mixtures.

    Example:
        >>> default_members(rows=500, features=5, context=0)
        ['cholesky', 'identity', 'gaussian']
    """
    if features + context == 1:
        # A linear layer before a flow of one feature without context would only repeat its ActNorm.
        return ["plain", "gaussian"]
    # Few rows are overfitted before an optimizer that needs fewer steps gains anything.
    has_third = MIN_ENSEMBLE_ROWS <= rows <= MAX_ENSEMBLE_ROWS
    strata = ["strata"] if has_categories and not context else []
    return ["cholesky", *["identity"] * (2 if has_third else 1), "gaussian", *strata]


def default_optimizers(flows: Sequence[str], rows: int) -> list[str]:
    """Default optimizers of the flows of a mixture, for a table with this number of training rows.

    Muon needs fewer steps than AdamW, but overfits earlier. Of two flows with the same start, one has AdamW and one
    Muon, and the validation rows decide between them. With many rows, for which flows with different starts race, all
    have Muon.

    Example:
        >>> default_optimizers(["cholesky", "identity", "identity"], rows=5_000)
        ['adamw', 'adamw', 'muon']
    """
    is_race = rows > MAX_ENSEMBLE_ROWS
    return ["muon" if is_race or flow in flows[:k] else "adamw" for k, flow in enumerate(flows)]


def default_recipe(rows: int, features: int, **declared: Any) -> Recipe:
    """Default training settings, for a table with this number of training rows and of features.

    The learning rate follows a cosine over a number of steps that grows with the square root of the number of rows, as
    the details that the rows can resolve. The fewer rows per feature, the stronger the weight decay, which reduces
    overfitting.

    Arguments:
        rows: Number of training rows.
        features: Number of features.
        declared: Settings that replace the defaults; None keeps a default.

    Example:
        >>> default_recipe(rows=10_000, features=5, max_steps=None).max_steps
        2000
    """
    is_scarce = has_few_rows(rows, features)
    batch_size = declared.get("batch_size") or (128 if is_scarce else 256 if rows < 100_000 else 512)
    has_horizon = declared.get("schedule") in (None, "cosine")
    max_steps = declared.get("max_steps") or (default_steps(rows) if has_horizon else MAX_STEPS)
    round_steps = max(1, min(200, check_count("max_steps", max_steps) // N_ROUNDS))
    settings: dict[str, Any] = {
        "learning_rate": 1e-3 if is_scarce else 3e-3,
        "schedule": "cosine",
        "batch_size": batch_size,
        "round_steps": round_steps,
        "early_rounds": N_EARLY_ROUNDS,
        "max_steps": max_steps,
        "patience": max(N_ROUNDS, max_steps // round_steps) // 3,
        "race_steps": None if rows <= MAX_ENSEMBLE_ROWS else max(1, round(RACE_SHARE * max_steps)),
        "plateau_patience": 5,
        "weight_decay": min(MAX_DECAY, DECAY_PER_FEATURE * features / rows),
    }
    return Recipe(**settings | {name: value for name, value in declared.items() if value is not None})


def default_steps(rows: int) -> int:
    """Default number of training steps for a table with this number of training rows.

    Example:
        >>> default_steps(500), default_steps(10_000), default_steps(1_000_000)
        (500, 2000, 20000)
    """
    return min(MAX_STEPS, max(MIN_STEPS, round(STEPS_PER_ROOT_ROW * rows**0.5)))


def has_few_rows(rows: int, features: int) -> bool:
    """Whether a table has few rows for its number of features."""
    return rows < MIN_ROWS_PER_FEATURE * features
