"""The settings of appendix F of the paper, which `--scale paper` uses.

Where the paper gives no number, there is a remark beside ours. Where it contradicts itself, both readings are
available: the widths that it prints, and the numbers of parameters that it prints.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from elflow.training import Recipe

__all__ = ["IMAGES", "TABLES", "TOYS", "ImageSettings", "TableSettings", "ToySettings"]

BOUND = 0.99
"""Our own: the paper's networks have a constant of at most 1, which allows slopes of zero."""


@dataclass(frozen=True)
class ToySettings:
    """Appendix F.1, for one toy distribution."""

    transforms: int
    parameters: int
    """The printed number of parameters, the second reading."""
    widths: dict[str, int]
    """The printed hidden sizes by system. That of ELF-AR is the width of its hypernetwork and the number of units:
    this gives the printed number of parameters."""
    bound: float = BOUND
    hidden_layers: int = 4
    learning_rates: tuple[float, ...] = (2e-3, 5e-3)
    """The paper takes the better one."""
    steps: int = 10_000
    batch_size: int = 128
    halve_every: int = 2_500
    ema_decay: float = 0.0
    """Averaged weights and clipping are mentioned for other data only."""

    def make_elf(self) -> dict[str, Any]:
        """The arguments of `elflow.ELF` for the paper's ELF-AR."""
        width = self.widths["elf"]
        sizes = {"transforms": self.transforms, "units": width, "hidden_features": [width] * self.hidden_layers}
        return sizes | {"parametrization": "weights", "bound": self.bound}


TOYS = {
    "eight-gaussians": ToySettings(
        transforms=1,
        parameters=250_000,
        widths={"elf": 192, "realnvp": 256, "residual": 256, "cpflow": 384, "naf": 256},
        bound=0.999,  # one transformation alone must compress the space between the modes
    ),
    "checkerboard": ToySettings(
        transforms=5,
        parameters=500_000,
        widths={"elf": 128, "realnvp": 196, "residual": 196, "cpflow": 256, "naf": 160},
    ),
}


TABLE_RECIPE = Recipe(
    learning_rate=1e-3,
    schedule="plateau",
    batch_size=1_024,
    max_grad_norm=1.0,
    plateau_patience=5,
    plateau_threshold=1e-3,
    plateau_floor=1e-4,
    optimizer="adam",
    ema_decay=0.0,
    patience=30,
)
"""Rounds are epochs. The patience of early stopping is our own: the paper gives none."""


@dataclass(frozen=True)
class TableSettings:
    """Appendix F.2."""

    transforms: int = 5
    hidden_layers: int = 5
    widths: tuple[int, ...] = (8, 16, 32, 64)
    """Hidden sizes as multiples of the number of features."""
    decays: tuple[float, ...] = (1e-4, 1e-5, 1e-6)
    units: tuple[int, ...] = (32, 64, 128)
    """Section 5.3 says that the width of ELF was searched, and gives no values: these are our own."""
    max_epochs: int = 1_000
    models: int = 3
    batch_sizes: dict[str, int] = field(default_factory=lambda: {"miniboone": 128})
    """Batch sizes of data sets that do not have that of `recipe`."""
    recipe: Recipe = TABLE_RECIPE

    def make_elf(self, features: int, width: int, units: int) -> dict[str, Any]:
        """The arguments of `elflow.ELF` for a table."""
        hidden = [width * features] * self.hidden_layers
        sizes = {"transforms": self.transforms, "units": units, "hidden_features": hidden}
        return sizes | {"parametrization": "weights", "bound": BOUND}

    def make_recipe(self, dataset: str, decay: float) -> dict[str, Any]:
        """The training settings of a table, without the numbers of steps, which depend on its rows."""
        recipe = self.recipe.to_dict() | {"weight_decay": decay}
        return recipe | {"batch_size": self.batch_sizes.get(dataset, self.recipe.batch_size)}


TABLES = TableSettings()


@dataclass(frozen=True)
class ImageSettings:
    """Appendix F.3, apart from the architectures (`elflow.flows.preset(name, "paper")`) and the recipe
    (`elflow.training.image_recipe("paper")`)."""

    max_seconds: float = 14 * 86_400.0
    """Up to two weeks."""
    max_seconds_small: float = 86_400.0
    """24 hours for the small models."""


IMAGES = ImageSettings()
