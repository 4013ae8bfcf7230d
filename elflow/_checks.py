"""Argument checks shared by all modules: errors name the argument, its value and the values that it may have.

This module imports nothing of elflow, so that every module can use it.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from numbers import Integral, Real
from typing import Any

import torch
from torch import Tensor
from torch._subclasses import FakeTensor


def check_bound(bound: float) -> None:
    """Raise an error unless `bound` is a number in (0, 1)."""
    if type(bound) is float and 0 < bound < 1:  # shortcut: isinstance(bound, Real) is slow, and this is called often
        return
    if isinstance(bound, bool) or not isinstance(bound, Real):
        raise TypeError(f"bound must be a number in (0, 1), got {type(bound).__name__}")
    if not 0 < bound < 1:
        raise ValueError(f"bound must be in (0, 1), got {bound}")


def check_count(name: str, value: object, least: int = 1) -> int:
    """Convert a whole number to int; raise an error if it is none, or below `least`.

    Example:
        >>> check_count("units", 0)
        Traceback (most recent call last):
        ...
        ValueError: units must be at least 1, got 0
    """
    if type(value) is int and value >= least:
        return value
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise TypeError(f"{name} must be an integer, got {value!r}")
    if int(value) < least:
        raise ValueError(f"{name} must be at least {least}, got {value}")
    return int(value)


def check_counts(name: str, values: object) -> list[int]:
    """Convert a sequence of positive whole numbers to a list of ints.

    Example:
        >>> check_counts("hidden_features", (64, 64))
        [64, 64]
    """
    if not isinstance(values, Iterable) or isinstance(values, str):
        raise TypeError(f"{name} must be a sequence of integers, got {values!r}")
    return [check_count(name, value) for value in values]


def check_positive(name: str, value: object) -> float:
    """Convert a positive, finite number to float.

    Example:
        >>> check_positive("tol", -1)
        Traceback (most recent call last):
        ...
        ValueError: tol must be positive and finite, got -1
    """
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError(f"{name} must be a number, got {value!r}")
    if not 0 < float(value) < float("inf"):
        raise ValueError(f"{name} must be positive and finite, got {value}")
    return float(value)


def check_choice(name: str, value: object, choices: Iterable[str]) -> None:
    """Raise an error unless the value is one of the choices.

    Example:
        >>> check_choice("method", "newton", ["exact", "sequential"])
        Traceback (most recent call last):
        ...
        ValueError: method must be one of ['exact', 'sequential'], got 'newton'
    """
    if value not in list(choices):
        raise ValueError(f"{name} must be one of {list(choices)}, got {value!r}")


LIBRARIES = tuple(os.path.join(os.path.dirname(path), "") for path in (__file__, torch.__file__))
"""Folders of elflow and of torch, whose decorators put frames between those of elflow."""


_recorders: ContextVar[tuple[list[str], ...]] = ContextVar("recorders", default=())


@contextmanager
def record_warnings() -> Iterator[list[str]]:
    """Collect the messages of `warn_user` inside the block, whatever filters do with the warnings themselves.

    Example:
        >>> with warnings.catch_warnings(), record_warnings() as messages:
        ...     warnings.simplefilter("ignore")
        ...     warn_user("the rows are few")
        >>> messages
        ['the rows are few']
    """
    messages: list[str] = []
    token = _recorders.set((*_recorders.get(), messages))
    try:
        yield messages
    finally:
        _recorders.reset(token)


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
    for messages in _recorders.get():
        if message not in messages:
            messages.append(message)
    frame = sys._getframe(1)
    module = frame.f_globals.get("__name__", "elflow")
    while frame.f_back is not None and frame.f_code.co_filename.startswith(LIBRARIES):
        frame = frame.f_back
    registry = frame.f_globals.setdefault("__warningregistry__", {})
    warnings.warn_explicit(message, category, frame.f_code.co_filename, frame.f_lineno, module, registry)


def check_order(order: object, features: int) -> tuple[int, ...]:
    """Convert a permutation of the features to a tuple of ints.

    Example:
        >>> check_order([0, 0, 1], features=3)
        Traceback (most recent call last):
        ...
        ValueError: order must be a permutation of 0 to 2, got [0, 0, 1]
    """
    if not isinstance(order, Iterable) or isinstance(order, str):
        raise TypeError(f"order must be 'alternating', 'shared' or a sequence of features, got {order!r}")
    columns = as_list(order)
    if not all(isinstance(i, Integral) for i in columns) or sorted(map(int, columns)) != list(range(features)):
        raise ValueError(f"order must be a permutation of 0 to {features - 1}, got {columns}")
    return tuple(map(int, columns))


def as_list(values: Any) -> list[Any]:
    """Convert a sequence, an array or a tensor to a list; numbers of numpy and torch become Python numbers.

    Example:
        >>> as_list(torch.tensor([1, 2]))
        [1, 2]
    """
    return list(values.tolist() if hasattr(values, "tolist") else values)


def check_rows(name: str, value: object, columns: int, of: str, dtype: torch.dtype | None = None) -> None:
    """Raise an error unless the value is a finite float tensor `(..., columns)`.

    Arguments:
        name: The name of the argument.
        value: The argument.
        columns: The size of its last dimension.
        of: The word for a column in the error, such as "feature".
        dtype: The dtype that it must have; None for any float dtype.
    """
    if not isinstance(value, Tensor):
        raise TypeError(f"{name} must be a torch.Tensor, got {type(value).__name__}")
    if not value.is_floating_point():
        raise TypeError(f"{name} must be a tensor of floats, got {value.dtype}: convert it with .float()")
    if dtype is not None and value.dtype != dtype:
        raise TypeError(
            f"{name} must have the dtype of the flow, {dtype}, got {value.dtype}: convert one of them with .to()"
        )
    if value.ndim == 0 or value.shape[-1] != columns:
        raise ValueError(
            f"{name} must have the shape (..., {columns}), one column for each {of}, got {tuple(value.shape)}"
        )
    if has_values(value):
        check_finite(name, value)


def check_finite(name: str, value: Tensor) -> None:
    """Raise an error if a row of `(..., columns)` has NaN or infinite values.

    Example:
        >>> check_finite("x", torch.tensor([[1.0, 2.0], [torch.nan, 2.0]]))
        Traceback (most recent call last):
        ...
        ValueError: x must be finite, got NaN or infinite values in 1 of 2 rows (first: row 1): drop or fill these rows
    """
    if not value.isfinite().all():
        wrong = (~value.isfinite()).any(-1).reshape(-1).nonzero().squeeze(-1)
        raise ValueError(
            f"{name} must be finite, got NaN or infinite values in {len(wrong)} of {value[..., 0].numel()} rows "
            f"(first: row {int(wrong[0])}): drop or fill these rows"
        )


def has_values(t: Tensor) -> bool:
    """Whether a tensor has values to look at: not while compiling, in torch.func, on the meta device, or if fake.

    Example:
        >>> has_values(torch.zeros(3)), has_values(torch.zeros(3, device="meta"))
        (True, False)
    """
    if torch.compiler.is_compiling() or is_under_transform():
        return False
    return not t.is_meta and not isinstance(t, FakeTensor)


def is_asynchronous(device: torch.device) -> bool:
    """Whether a device computes while Python goes on, so that reading a value makes Python wait."""
    return device.type not in ("cpu", "meta")


_is_deferred: ContextVar[bool] = ContextVar("is_deferred", default=False)


@contextmanager
def defer_finite_checks() -> Iterator[None]:
    """Leave out the checks of parameters on asynchronous devices inside the block: a network that is not finite gives
    NaN instead of an error, and the caller checks the result once.

    Example:
        >>> with defer_finite_checks():
        ...     are_finite_checks_deferred()
        True
    """
    token = _is_deferred.set(True)
    try:
        yield
    finally:
        _is_deferred.reset(token)


def are_finite_checks_deferred() -> bool:
    """Whether `defer_finite_checks` is active."""
    return _is_deferred.get()


def is_under_transform() -> bool:
    """Whether a transform of torch.func (vmap, grad, jvp, ...) or forward-mode differentiation is active.

    Tensors are then wrappers without values, which cannot be checked. While compiling the answer is False.
    """
    if torch.compiler.is_compiling():  # dynamo cannot trace the two calls below
        return False
    return torch._C._functorch.peek_interpreter_stack() is not None or torch.autograd.forward_ad._current_level >= 0


def join_names(names: Sequence[str], most: int = 8) -> str:
    """Join names for an error message, quoted; after the first `most` only their number is given.

    Example:
        >>> join_names(["a", "b", "c"], most=2)
        "'a', 'b' and 1 more"
    """
    return ", ".join(map(repr, names[:most])) + (f" and {len(names) - most} more" if len(names) > most else "")
