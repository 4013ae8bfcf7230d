"""Data-dependent initialisation: modules that take their first values from a batch of data.

There is one protocol. `module.initialize(x)` sets what is not set yet; `module.initialized` says whether all is set.
A `DataInitialized` module owns its state: a buffer, stored with the weights, so that a loaded model is not set again.
An `InitializesParts` module has no such state: it passes data to its parts, and remembers that all of them are set.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from elflow._checks import is_under_transform

__all__ = ["DataInitialized", "InitializesParts"]


class DataInitialized(nn.Module):
    """A module whose values are set from the first batch.

    Subclasses implement `set_from(x)`, which returns whether the batch was large enough.

    Example:
        >>> class Centre(DataInitialized):
        ...     def __init__(self):
        ...         super().__init__()
        ...         self.register_buffer("mean", torch.zeros(()))
        ...
        ...     def set_from(self, x):
        ...         self.mean.copy_(x.mean())
        ...         return True
        >>> centre = Centre()
        >>> centre.initialize(torch.tensor([1.0, 3.0]))
        >>> centre.initialize(torch.tensor([7.0, 9.0]))  # too late
        >>> centre.mean
        tensor(2.)
    """

    initialized: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("initialized", torch.tensor(False))

    @torch.no_grad()
    def initialize(self, x: Tensor) -> None:
        """Sets the values from a batch; does nothing if they are set already."""
        if not self.initialized and self.set_from(x):
            self.initialized.fill_(True)

    def set_from(self, x: Tensor) -> bool:
        """Sets the values from a batch, and returns whether it did."""
        raise TypeError(f"{type(self).__name__} must implement set_from(x)")


class InitializesParts(nn.Module):
    """A module with `DataInitialized` parts, which the first batch in training mode sets.

    Subclasses implement `initialize_parts(x, c)`, and call `initialize` before they use the first batch.
    """

    initialized: bool
    """Whether all parts are set, as far as is known: a plain value that `torch.compile` can guard on."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.initialized = False
        self.register_load_state_dict_post_hook(_reset_initialized)

    @torch.compiler.disable
    @torch.no_grad()
    def initialize(self, x: Any, c: Any = None) -> None:
        """Sets the parts that are not set yet.

        Arguments:
            x: Data, as for `log_prob`.
            c: Their context, or None for a flow without one.
        """
        if is_under_transform():  # there are no numbers to look at
            return
        if not self._are_parts_set():
            self.initialize_parts(x, c)
        self.initialized = self._are_parts_set()

    def initialize_parts(self, x: Any, c: Any) -> None:
        """Passes data to the parts, in the order in which they see it."""
        raise TypeError(f"{type(self).__name__} must implement initialize_parts(x, c)")

    def _are_parts_set(self) -> bool:
        return all(bool(part.initialized) for part in self.modules() if isinstance(part, DataInitialized))


def _reset_initialized(module: InitializesParts, _: object) -> None:
    """Looks at the parts again after a state was loaded."""
    module.initialized = False
