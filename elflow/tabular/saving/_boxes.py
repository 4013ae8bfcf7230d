"""Check of the boxes of Gaussians in a model file: they must consist of cells of categories."""

from __future__ import annotations

import numpy as np
from torch import nn

from elflow.flows.strata import FAR, BoxGaussian
from elflow.tabular.schema import Schema

__all__ = ["check_boxes"]


def check_boxes(model: nn.Module, schema: Schema) -> None:
    """Raise an error that names a tensor with an end of a box that is no end between categories.

    A box that is empty, or far away from its Gaussian, would have an infinite density.

    Arguments:
        model: The flow, with the weights of the file.
        schema: The columns of the table.
    """
    ends = schema.category_ends
    for name, part in model.named_modules():
        if not isinstance(part, BoxGaussian):
            continue
        lower, upper = (tensor.double().cpu().numpy() for tensor in (part.lower, part.upper))
        for position in range(len(lower)):
            for tensor, value, far in (("lower", lower[position], -FAR), ("upper", upper[position], FAR)):
                # Files are in single precision, and ends are computed: another processor may round them differently.
                if not np.isclose(value, [far, *ends.get(position, ())], rtol=1e-6, atol=1e-6).any():
                    raise ValueError(
                        f"{name}.{tensor}[{position}] must be {far:g} or an end between categories, got {value:g}"
                    )
            if lower[position] >= upper[position]:
                raise ValueError(
                    f"{name}.lower[{position}] must be less than {name}.upper[{position}], "
                    f"got {lower[position]:g} and {upper[position]:g}"
                )
