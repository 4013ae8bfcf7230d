"""Errors for arguments that are wrong: each names the argument, what it was and what it must be."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Iterable, Sequence
from numbers import Integral, Real
from typing import Any

import torch
from torch import Tensor


def check_bound(bound: float) -> None:
    if type(bound) is float and 0 < bound < 1:  # in short: asking whether it is a Real takes a while
        return
    if isinstance(bound, bool) or not isinstance(bound, Real):
        raise TypeError(f"bound must be a number in (0, 1), got {type(bound).__name__}")
    if not 0 < bound < 1:
        raise ValueError(f"bound must be in (0, 1), got {bound}")


def check_count(name: str, value: Any, least: int = 1) -> int:
    """The value as an int."""
    if type(value) is int and value >= least:
        return value
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise TypeError(f"{name} must be an integer, got {value!r}")
    if value < least:
        raise ValueError(f"{name} must be at least {least}, got {value}")
    return int(value)


def check_counts(name: str, values: Any) -> list[int]:
    """The values as a list of ints."""
    if not isinstance(values, Iterable) or isinstance(values, str):
        raise TypeError(f"{name} must be a sequence of integers, got {values!r}")
    return [check_count(name, value) for value in values]


def check_positive(name: str, value: Any) -> float:
    """The value as a float."""
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError(f"{name} must be a number, got {value!r}")
    if not 0 < float(value) < float("inf"):
        raise ValueError(f"{name} must be positive and finite, got {value}")
    return float(value)


def check_choice(name: str, value: Any, choices: Iterable[str]) -> None:
    if value not in list(choices):
        raise ValueError(f"{name} must be one of {list(choices)}, got {value!r}")


LIBRARIES = tuple(os.path.join(os.path.dirname(path), "") for path in (__file__, torch.__file__))
"""Folders of elflow and of torch, whose decorators put frames between those of elflow."""


def warn_user(message: str, category: type[Warning] = UserWarning) -> None:
    """Issue a warning at the line of the user's code that called elflow, however deep in elflow its cause lies.

    Filters see the module of elflow that issued it, so that `warnings.filterwarnings(..., module="elflow")` applies.

    Example:
        >>> with warnings.catch_warnings(record=True) as caught:
        ...     warnings.simplefilter("always")
        ...     warn_user("the rows are few")
        >>> str(caught[0].message)
        'the rows are few'
    """
    frame = sys._getframe(1)
    module = frame.f_globals.get("__name__", "elflow")
    while frame.f_back is not None and frame.f_code.co_filename.startswith(LIBRARIES):
        frame = frame.f_back
    registry = frame.f_globals.setdefault("__warningregistry__", {})
    warnings.warn_explicit(message, category, frame.f_code.co_filename, frame.f_lineno, module, registry)


def check_order(order: Any, features: int) -> tuple[int, ...]:
    """A permutation of the features."""
    if not isinstance(order, Iterable) or isinstance(order, str):
        raise TypeError(f"order must be 'alternating', 'shared' or a sequence of features, got {order!r}")
    given = as_list(order)
    if not all(isinstance(i, Integral) for i in given) or sorted(map(int, given)) != list(range(features)):
        raise ValueError(f"order must hold each of the features 0 to {features - 1} once, got {given}")
    return tuple(map(int, given))


def as_list(values: Any) -> list[Any]:
    """The elements of a sequence, an array or a tensor, with Python's own numbers where it knows them."""
    return list(values.tolist() if hasattr(values, "tolist") else values)


def check_rows(name: str, value: Any, columns: int, of: str, dtype: torch.dtype | None = None) -> None:
    """That a tensor is `(..., columns)` and finite."""
    if not isinstance(value, Tensor):
        raise TypeError(f"{name} must be a torch.Tensor, got {type(value).__name__}")
    if not value.is_floating_point():
        raise TypeError(f"{name} must be a tensor of floats, got {value.dtype}: convert it with .float()")
    if dtype is not None and value.dtype != dtype:
        raise TypeError(
            f"{name} must have the dtype of the flow, {dtype}, got {value.dtype}: convert either with .to()"
        )
    if value.ndim == 0 or value.shape[-1] != columns:
        raise ValueError(
            f"{name} must have the shape (..., {columns}), one column for each {of}, got {tuple(value.shape)}"
        )
    if not torch.compiler.is_compiling() and not is_under_transform():  # where there are no numbers to look at
        check_finite(name, value)


def check_finite(name: str, value: Tensor) -> None:
    """That no row of `(..., columns)` holds NaN or an infinity."""
    if not value.isfinite().all():
        wrong = (~value.isfinite()).any(-1).reshape(-1).nonzero().squeeze(-1)
        raise ValueError(
            f"{name} must be finite, got NaN or an infinity in {len(wrong)} of its {value[..., 0].numel()} rows, "
            f"the first of them row {int(wrong[0])}: drop those rows or fill them in"
        )


def is_under_transform() -> bool:
    """Whether a transform of torch.func (vmap, grad, jvp, ...) or forward-mode differentiation is active.

    Tensors are then wrappers without values, which cannot be checked. While compiling the answer is False.
    """
    if torch.compiler.is_compiling():
        return False
    return torch._C._functorch.peek_interpreter_stack() is not None or torch.autograd.forward_ad._current_level >= 0


def join_names(names: Sequence[str], most: int = 8) -> str:
    """Join names for an error message, quoted; only the number of those after the first `most` is given.

    Example:
        >>> join_names(["a", "b", "c"], most=2)
        "'a', 'b' and 1 more"
    """
    return ", ".join(map(repr, names[:most])) + (f" and {len(names) - most} more" if len(names) > most else "")
