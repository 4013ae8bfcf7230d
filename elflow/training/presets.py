"""The paper's image models by name, each with its recipe, and in a size for CPUs."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from elflow._checks import check_choice
from elflow.flows.image import ImageELF
from elflow.training.recipe import Recipe

__all__ = ["PRESETS", "SCALES", "Preset", "preset"]

PAPER = Recipe(
    rate=1e-3,
    schedule="warmup-exponential",
    batch_size=64,
    max_steps=1_000_000,
    round_steps=1_000,
    patience=100,
    clip=1.0,
    decay=0.999,
    warmup=100,
    hold=100_000,
    gamma=0.99999,
    least_rate=2e-4,
)
"""How the paper trains: 100 steps of warming up, and after 100,000 a slow decay."""
CPU = replace(PAPER, rate=4e-3, batch_size=32, time_limit=600.0, round_steps=100, decay=0.998, hold=2_000, gamma=0.9996)
"""The same with a larger rate and smaller batches, for ten minutes unless more are given."""

CPU_SIZES: dict[str, Any] = {"units": 16, "channels": 16, "blocks": 2}


@dataclass(frozen=True)
class Preset:
    """An image model and how to train it.

    Example:
        >>> small = preset("mnist", scale="cpu")
        >>> img = small.build(classes=10)
        >>> img.shape, img.classes, small.recipe.batch_size
        ((1, 28, 28), 10, 32)
    """

    flow: dict[str, Any]
    """The arguments of `elflow.ImageELF`."""
    recipe: Recipe
    """How to train it."""
    parameters: int
    """How many numbers it learns."""

    def build(self, **changes: Any) -> ImageELF:
        """The model before training, with arguments of `elflow.ImageELF` that take precedence."""
        return ImageELF(**(self.flow | changes))


def _model(shape: tuple[int, int, int], channels: int, blocks: int, **others: Any) -> dict[str, Any]:
    sizes = {"levels": 256, "scales": 3, "transforms": 4, "units": 32}
    return {"shape": shape, **sizes, "channels": channels, "blocks": blocks, **others}


_MODELS: dict[str, dict[str, Any]] = {
    "mnist": _model((1, 28, 28), 96, 5, warp="zeros"),
    "mnist-small": _model((1, 28, 28), 48, 3, warp="zeros"),
    "cifar10": _model((3, 32, 32), 128, 5),
    "cifar10-small": _model((3, 32, 32), 46, 3),
    "cifar10-vardeq-4m": _model((3, 32, 32), 64, 3, units=36, dequantization="variational"),
    "imagenet32": _model((3, 32, 32), 128, 5),
    "imagenet64": _model((3, 64, 64), 128, 5),
    "digits": _model((1, 8, 8), 32, 3, levels=17, warp="zeros"),
}
_PARAMETERS = {
    "mnist": (11_473_186, 168_386),
    "mnist-small": (1_870_498, 168_386),
    "cifar10": (19_912_494, 212_598),
    "cifar10-small": (1_896_454, 212_598),
    "cifar10-vardeq-4m": (4_116_010, 320_166),
    "imagenet32": (19_912_494, 212_598),
    "imagenet64": (20_027_182, 226_934),
    "digits": (861_986, 159_426),
}
"""How many numbers each learns, at the scale of the paper and of CPUs."""

PRESETS = list(_MODELS)
SCALES = ["paper", "cpu"]


def preset(name: str, scale: str = "paper") -> Preset:
    """An image model by name.

    Arguments:
        name: One of `PRESETS`: those of the paper, and `"digits"` for images of 8x8 pixels.
        scale: `"paper"` for its size and recipe, `"cpu"` for what a CPU trains in minutes.

    Example:
        >>> preset("mnist-small").parameters
        1870498
    """
    check_choice("name", name, PRESETS)
    check_choice("scale", scale, SCALES)
    flow, (parameters, parameters_cpu) = _MODELS[name], _PARAMETERS[name]
    if scale == "paper":
        return Preset(dict(flow), PAPER, parameters)
    warp = "histogram" if flow["shape"][0] == 1 else "none"
    return Preset(flow | CPU_SIZES | {"warp": warp}, CPU, parameters_cpu)
