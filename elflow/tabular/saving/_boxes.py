"""Check of the groups and factors of categories in a model file: their boxes and tables must consist of cells."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import torch
from torch import nn

from elflow.flows.group_norm import MAX_LOG_RATIO, GroupNorm
from elflow.flows.groups import FAR
from elflow.flows.strata import BoxGaussian
from elflow.flows.tilted import MAX_LOG_FACTOR, MAX_LOG_PART, Tilted
from elflow.tabular._arrays import FloatArray
from elflow.tabular.schema import Schema

__all__ = ["check_boxes"]


def check_boxes(model: nn.Module, schema: Schema) -> None:
    """Raise an error that names a tensor with an end of a box that is no end between cells of categories or states.

    A box that is empty, or far away from its Gaussian, would have an infinite density. A layer that moves the features
    by which it divides rows would have no inverse.

    Arguments:
        model: The flow, with the weights of the file.
        schema: The columns of the table.
    """
    for name, part in model.named_modules():
        if isinstance(part, BoxGaussian | GroupNorm):
            # Groups are compared with the features of categories only.
            ends = schema.category_ends | ({} if isinstance(part, GroupNorm) else schema.state_ends)
            lower, upper = (tensor.double().cpu().numpy() for tensor in (part.lower, part.upper))
            for index in np.ndindex(lower.shape):
                _check_box(name, index, float(lower[index]), float(upper[index]), ends.get(index[-1], np.zeros(0)))
        if isinstance(part, GroupNorm):
            _check_maps(name, part)
        if isinstance(part, Tilted):
            _check_factors(name, part)


def _check_box(name: str, index: tuple[int, ...], lower: float, upper: float, ends: FloatArray) -> None:
    place = ", ".join(map(str, index))
    for tensor, value, far in (("lower", lower, -FAR), ("upper", upper, FAR)):
        # Files are in single precision, and ends are computed: another processor may round them differently.
        if not np.isclose(value, [far, *ends], rtol=1e-6, atol=1e-6).any():
            raise ValueError(f"{name}.{tensor}[{place}] must be {far:g} or an end between cells, got {value:g}")
    if lower >= upper:
        raise ValueError(f"{name}.lower[{place}] must be less than {name}.upper[{place}], got {lower:g} and {upper:g}")


def _check_maps(name: str, norm: GroupNorm) -> None:
    """Check that groups have no rows in common, and that they move only the features that they may."""
    for first, second in combinations(range(len(norm.loc)), 2):
        lower, upper = torch.maximum(*norm.lower[[first, second]]), torch.minimum(*norm.upper[[first, second]])
        if (lower < upper).all():
            raise ValueError(f"{name}.lower and {name}.upper of the groups {first} and {second} must not overlap")
    for tensor in ("loc", "log_scale"):
        values = getattr(norm, tensor)
        for group, position in values.nonzero().tolist():
            value = float(values[group, position])
            if position not in norm.standardized:
                raise ValueError(f"{name}.{tensor}[{group}, {position}] must be 0, got {value:g}")
            if tensor == "log_scale" and abs(value) > MAX_LOG_RATIO:
                raise ValueError(
                    f"{name}.{tensor}[{group}, {position}] must be at most {MAX_LOG_RATIO:g} in size, got {value:g}"
                )


def _check_factors(name: str, tilted: Tilted) -> None:
    """Check that factors of cells have the size of fitted ones."""
    factors = {f"{name}.table{k}": values for k, values in enumerate(tilted.factors)}
    for tensor, values in (factors | {f"{name}.log_constant": tilted.log_constant}).items():
        limit = MAX_LOG_PART if values.dim() else MAX_LOG_FACTOR
        for value in (float(values.min()), float(values.max())):
            if not abs(value) <= limit + 1e-6:  # files are in single precision
                raise ValueError(f"{tensor} must be at most {limit:g} in size, got {value:g}")
