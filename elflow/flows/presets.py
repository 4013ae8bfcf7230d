"""Presets: architectures of the paper's image models, and smaller ones for CPUs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from elflow._checks import check_choice
from elflow.flows.image import ImageELF

__all__ = ["PRESETS", "SIZES", "Preset", "preset"]

CPU_ARGUMENTS: dict[str, Any] = {"units": 16, "channels": 16, "blocks": 2}


@dataclass(frozen=True)
class Preset:
    """Architecture of an image model. `elflow.training.image_recipe` returns the training settings.

    Example:
        >>> img = preset("mnist", size="cpu").build(classes=10)
        >>> img.shape, img.classes
        ((1, 28, 28), 10)
    """

    flow: dict[str, Any]
    """The arguments of `elflow.ImageELF`."""
    parameters: int
    """Number of learnable parameters."""

    def build(self, **changes: Any) -> ImageELF:
        """Build the untrained model; `changes` override arguments of `elflow.ImageELF`."""
        return ImageELF(**(self.flow | changes))


def _make_arguments(shape: tuple[int, int, int], channels: int, blocks: int, **changes: Any) -> dict[str, Any]:
    defaults = {"levels": 256, "scales": 3, "transforms": 4, "units": 32}
    return {"shape": shape, **defaults, "channels": channels, "blocks": blocks, **changes}


_ARGUMENTS: dict[str, dict[str, Any]] = {
    "mnist": _make_arguments((1, 28, 28), 96, 5, warp="zeros"),
    "mnist-small": _make_arguments((1, 28, 28), 48, 3, warp="zeros"),
    "cifar10": _make_arguments((3, 32, 32), 128, 5),
    "cifar10-small": _make_arguments((3, 32, 32), 46, 3),
    "cifar10-vardeq-4m": _make_arguments((3, 32, 32), 64, 3, units=36, dequantization="variational"),
    "imagenet32": _make_arguments((3, 32, 32), 128, 5),
    "imagenet64": _make_arguments((3, 64, 64), 128, 5),
    "digits": _make_arguments((1, 8, 8), 32, 3, levels=17, warp="zeros"),
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
"""Number of learnable parameters of each preset, for size `"paper"` and for size `"cpu"`."""

PRESETS = list(_ARGUMENTS)
SIZES = ["paper", "cpu"]


def preset(name: str, size: str = "paper") -> Preset:
    """Look up the architecture of an image model by name.

    Arguments:
        name: One of `PRESETS`: the models of the paper, and `"digits"` for images of 8x8 pixels.
        size: `"paper"` for a size near the paper's, `"cpu"` for a model that a CPU trains in minutes.

    Example:
        >>> preset("mnist-small").parameters
        1870498
    """
    check_choice("name", name, PRESETS)
    check_choice("size", size, SIZES)
    flow, (parameters, parameters_cpu) = _ARGUMENTS[name], _PARAMETERS[name]
    if size == "paper":
        return Preset(dict(flow), parameters)
    warp = "histogram" if flow["shape"][0] == 1 else "none"
    return Preset(flow | CPU_ARGUMENTS | {"warp": warp}, parameters_cpu)
