"""Initialisation of hypernetworks, and data-dependent initialisation from the first batch.

Data-dependent initialisation has one protocol: `module.initialize(x)` sets the values that are not set yet, and
`module.initialized` tells whether all of them are set. A `DataInitialized` module stores this state in a buffer, next
to its weights, so that a loaded model is not initialised again. An `InitializesParts` module has no state to store: it
passes data to its parts and caches that all of them are set.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from elflow._checks import is_under_transform

__all__ = ["DataInitialized", "InitializesParts", "draw_initial_phi"]

MAX_POSITION = 3.0
"""Maximum distance of an initial bump from zero, where ActNorm centres the data."""
WIDTH_RANGE = 0.3, 3.0
"""Range of the initial widths of bumps."""
SHARPNESS_RANGE = 1.0, 4.0
"""Range of the initial sharpness of the edges of bumps."""
WEIGHT_RANGE = 0.5, 2.5
"""Range of the absolute values of initial weights w1."""


def draw_initial_phi(networks: int, units: int, parametrization: str = "bumps") -> Tensor:
    """Random initial parameters of one-dimensional networks.

    Arguments:
        networks: The number of networks.
        units: The number of units of each network.
        parametrization: One of `elflow.transforms.PARAMETRIZATIONS`.

    Returns:
        Parameters, `(networks, network_size(units, parametrization))`.

    Example:
        >>> draw_initial_phi(3, units=8).shape
        torch.Size([3, 21])
    """
    if parametrization == "weights":
        return _draw_initial_weights(networks, units)
    pairs = (units + 1) // 2
    log_k = torch.empty(networks, units).uniform_(*map(math.log, SHARPNESS_RANGE))
    t = torch.empty(networks, pairs).uniform_(-MAX_POSITION, MAX_POSITION)
    log_w = torch.empty(networks, pairs).uniform_(*map(math.log, WIDTH_RANGE))
    a = 0.5 * pairs**-0.5 * torch.randn(networks, pairs)
    return torch.cat([log_k, t, log_w, a, torch.zeros(networks, 1)], dim=-1)


def _draw_initial_weights(networks: int, units: int) -> Tensor:
    """w1, b1 and w2 of all units, and b2. The paper does not say how it draws them."""
    sign = torch.randint(2, (networks, units)) * 2 - 1
    w1 = sign * torch.empty(networks, units).uniform_(*WEIGHT_RANGE)
    t = torch.empty(networks, units).uniform_(-MAX_POSITION, MAX_POSITION)  # the breakpoint -b1 / w1
    w2 = 0.5 * units**-0.5 * torch.randn(networks, units)
    return torch.cat([w1, -w1 * t, w2, torch.zeros(networks, 1)], dim=-1)


class DataInitialized(nn.Module):
    """Base class of modules whose values are set from the first batch.

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
        >>> centre.initialize(torch.tensor([7.0, 9.0]))  # no effect: the first batch has set the mean
        >>> centre.mean
        tensor(2.)
    """

    initialized: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("initialized", torch.tensor(False))

    @torch.no_grad()
    def initialize(self, x: Tensor) -> None:
        """Set the values from a batch; do nothing if they are set already."""
        if not self.initialized and self.set_from(x):
            self.initialized.fill_(True)

    def set_from(self, x: Tensor) -> bool:
        """Set the values from a batch, and return whether the batch was large enough."""
        raise TypeError(f"{type(self).__name__} must implement set_from(x)")


class InitializesParts(nn.Module):
    """Base class of modules with `DataInitialized` parts, which the first batch in training mode sets.

    Subclasses implement `initialize_parts(x, c)`, and call `initialize` before they use the first batch.
    """

    initialized: bool
    """Whether all parts are known to be set: a plain value, which `torch.compile` can guard on."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.initialized = False
        self.register_load_state_dict_post_hook(_reset_initialized)

    def initialize(self, x: Any, c: Any = None) -> None:
        """Set the parts that are not set yet.

        Arguments:
            x: Data, as for `log_prob`.
            c: Their context, or None for a flow without context.
        """
        # As a decorator, `disable` would import the compiler of torch with this module: a second for every process.
        initialize = torch.compiler.disable(self._initialize) if torch.compiler.is_compiling() else self._initialize
        initialize(x, c)

    @torch.no_grad()
    def _initialize(self, x: Any, c: Any) -> None:
        if is_under_transform():  # tensors under vmap and the like have no values to look at
            return
        if not self._has_initialized_parts():
            self.initialize_parts(x, c)
        self.initialized = self._has_initialized_parts()

    def initialize_parts(self, x: Any, c: Any) -> None:
        """Pass data to the parts, in the order in which the parts process it."""
        raise TypeError(f"{type(self).__name__} must implement initialize_parts(x, c)")

    def _has_initialized_parts(self) -> bool:
        return all(bool(part.initialized) for part in self.modules() if isinstance(part, DataInitialized))


def _reset_initialized(module: InitializesParts, _: object) -> None:
    """Make a module look at its parts again after it has loaded a state."""
    module.initialized = False
