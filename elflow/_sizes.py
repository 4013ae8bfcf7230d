"""Limits on the size of a module while it is built, so that a small file cannot make a program allocate a large one."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_buffer_registration_hook as hook_buffers
from torch.nn.modules.module import register_module_parameter_registration_hook as hook_parameters
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

__all__ = ["check_integers", "limit_sizes"]

SLACK_VALUES, SLACK_TENSORS = 2**16, 256
"""Numbers of values and of tensors of a module that are always allowed."""
SLACK_BYTES = 2**26
"""Memory of the result of an operation that is always allowed: masks of wide tables may exceed the weights."""
MIN_ROWS = 2**10
"""Number of rows that may always be compared with each other."""
FREE_INTEGER = 2**16
"""Integers in a configuration up to which sizes are left to `limit_sizes`: an unused option may exceed the file."""


def check_integers(values: object, n_values: int, path: str) -> None:
    """Raise an error if an integer in a configuration exceeds the number of values of the model in the same file.

    Sizes in configurations are lengths of tensors or numbers of layers. This check finds those that would keep plain
    Python busy for long.

    Arguments:
        values: The configuration, from JSON.
        n_values: Number of values in the file.
        path: The name of the configuration in errors.

    Example:
        >>> check_integers({"units": 10**9}, n_values=100, path="config")
        Traceback (most recent call last):
        ...
        ValueError: config.units must be at most 65536 in a file of 100 values, got 1000000000
    """
    if isinstance(values, dict):
        for name, value in values.items():
            check_integers(value, n_values, f"{path}.{name}")
    elif isinstance(values, list):
        for index, value in enumerate(values):
            check_integers(value, n_values, f"{path}[{index}]")
    elif isinstance(values, int) and abs(values) > (most := max(n_values, FREE_INTEGER)):
        raise ValueError(f"{path} must be at most {most} in a file of {n_values} values, got {values}")


@contextmanager
def limit_sizes(n_values: int, n_tensors: int) -> Iterator[None]:
    """Raise an error as soon as modules built inside the block exceed a size, before their memory is allocated.

    The size of the result of each operation is computed on the meta device first, so that this works for modules of any
    library, also for those that cannot be built on the meta device because their masks depend on values.

    Arguments:
        n_values: Number of values of the weights in a file.
        n_tensors: Number of tensors in the file.

    Example:
        >>> with limit_sizes(n_values=100, n_tensors=2):
        ...     _ = nn.Linear(10**6, 10**6)
        Traceback (most recent call last):
        ...
        ValueError: the configuration requires a tensor of 4000000000000 bytes, but the file has 100 values
    """
    counter, thread = _Counter(n_values, n_tensors), threading.get_ident()

    def count(_: nn.Module, name: str, value: Tensor | None) -> None:
        # Hooks see the modules of all threads.
        if value is not None and threading.get_ident() == thread:
            counter.add(value)

    hooks = [hook_parameters(count), hook_buffers(count)]
    try:
        with _AllocationGuard(n_values):
            yield
    finally:
        for hook in hooks:
            hook.remove()


class _Counter:
    """Values and tensors of modules so far."""

    def __init__(self, n_values: int, n_tensors: int) -> None:
        self.n_values, self.max_values = n_values, SLACK_VALUES + 4 * n_values  # built, and then filled
        self.n_tensors, self.max_tensors = n_tensors, SLACK_TENSORS + 4 * n_tensors
        self.values = self.tensors = 0

    def add(self, value: Tensor) -> None:
        self.values += value.numel() if value.is_floating_point() else 0  # masks are not stored
        self.tensors += 1
        if self.values > self.max_values:
            raise ValueError(f"the configuration requires over {self.values} values, but the file has {self.n_values}")
        if self.tensors > self.max_tensors:
            raise ValueError(
                f"the configuration requires over {self.tensors} tensors, but the file has {self.n_tensors}"
            )


class _AllocationGuard(TorchDispatchMode):
    """Mode in which the results of an operation have a limited size.

    Arguments:
        n_values: Number of values of the weights in a file.
    """

    def __init__(self, n_values: int) -> None:
        super().__init__()
        self.n_values = n_values
        self.max_bytes = SLACK_BYTES + 16 * n_values
        # An output of a network has at least one weight and a bias. The masks of zuko's networks begin with a sort of
        # their rows, which takes microseconds per row.
        self.max_rows = max(MIN_ROWS, n_values // 2)

    def __torch_dispatch__(self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if self._may_exceed(args, kwargs) and (size := _compute_bytes(func, args, kwargs)) > self.max_bytes:
            raise ValueError(
                f"the configuration requires a tensor of {size} bytes, but the file has {self.n_values} values"
            )
        if "unique" in func.name() and len(args[0]) > self.max_rows:
            rows = len(args[0])
            raise ValueError(f"the configuration requires {rows} outputs, but the file has {self.n_values} values")
        return func(*args, **kwargs)

    def _may_exceed(self, args: Sequence[Any], kwargs: dict[str, Any]) -> bool:
        """Whether the product of all sizes exceeds the limit: no operation makes more of its arguments than that."""
        leaves = tree_leaves((args, kwargs))
        sizes = [leaf.numel() if isinstance(leaf, Tensor) else abs(leaf) for leaf in leaves if _is_size(leaf)]
        return 8 * math.prod(max(1, math.ceil(size)) for size in sizes) > self.max_bytes


def _is_size(leaf: object) -> bool:
    """Whether an argument is a tensor or a finite number, which may be a length."""
    return isinstance(leaf, Tensor | int) or (isinstance(leaf, float) and math.isfinite(leaf))


def _compute_bytes(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> int:
    """Memory of an operation's results, by a dry run on the meta device."""
    if func.name().partition(".")[0].endswith("_") or func.is_view:  # neither has memory of its own
        return 0

    def as_meta(value: Tensor) -> Tensor:
        return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="meta")

    try:
        with torch.device("meta"):
            shallow = tree_map_only(Tensor, as_meta, (list(args), kwargs))
            if "device" in shallow[1]:
                shallow[1]["device"] = torch.device("meta")
            result = func(*shallow[0], **shallow[1])
    except Exception:  # results that depend on values, such as those of unique, are not larger than the arguments
        return 0
    return sum(leaf.nbytes for leaf in tree_leaves(result) if isinstance(leaf, Tensor))
