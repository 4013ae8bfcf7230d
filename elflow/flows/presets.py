"""Presets: architectures of the paper's image models, and smaller ones for CPUs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from elflow._checks import check_choice
from elflow.flows.image import ImageELF

__all__ = ["PRESETS", "SIZES", "Preset", "preset"]

PAPER_ARGUMENTS: dict[str, Any] = {"units": 256, "parametrization": "weights", "noise_sizes": {"transforms": 4}}
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
_PAPER_ARGUMENTS: dict[str, dict[str, Any]] = {
    "mnist": {"channels": 192},
    "mnist-small": {"channels": 84},
    "cifar10": {"channels": 192},
    "cifar10-small": {"channels": 80},
    "cifar10-vardeq-4m": {"channels": 88, "noise_sizes": {"transforms": 4, "channels": 192, "blocks": 5}},
    "imagenet32": {"channels": 192, "transforms": 8, "noise_sizes": {"transforms": 8}},
    "imagenet64": {"channels": 192, "transforms": 8, "noise_sizes": {"transforms": 8}},
}
"""Appendix F of the paper, with 256 units everywhere. It does not give the number of transformations of learned noise:
as many as on a scale, because the rest of that flow is that of the images."""
_PARAMETERS = {
    "mnist": (50_319_444, 11_473_186, 168_386),
    "mnist-small": (7_775_292, 1_870_498, 168_386),
    "cifar10": (56_598_780, 19_912_494, 212_598),
    "cifar10-small": (10_511_284, 1_896_454, 212_598),
    "cifar10-vardeq-4m": (29_976_632, 4_116_010, 320_166),
    "imagenet32": (113_197_560, 19_912_494, 212_598),
    "imagenet64": (113_541_624, 20_027_182, 226_934),
    "digits": (861_986, 861_986, 159_426),
}
"""Number of learnable parameters of each preset for each of `SIZES`."""

PRESETS = list(_ARGUMENTS)
SIZES = ["paper", "gpu", "cpu"]


def preset(name: str, size: str = "gpu") -> Preset:
    """Look up the architecture of an image model by name.

    Arguments:
        name: One of `PRESETS`: the models of the paper, and `"digits"` for images of 8x8 pixels.
        size: `"paper"` for the widths that the paper prints, and its own parametrisation by weights; `"gpu"` for bumps
            and 32 units, with the numbers of parameters that the paper prints for its small models, which its widths do
            not give; `"cpu"` for a model that a CPU trains in minutes. Digits are not in the paper.

    Example:
        >>> preset("mnist-small").parameters
        1870498
    """
    check_choice("name", name, PRESETS)
    check_choice("size", size, SIZES)
    flow, parameters = _ARGUMENTS[name], _PARAMETERS[name][SIZES.index(size)]
    if size == "cpu":
        warp = "histogram" if flow["shape"][0] == 1 else "none"
        return Preset(flow | CPU_ARGUMENTS | {"warp": warp}, parameters)
    if size == "paper" and name in _PAPER_ARGUMENTS:
        return Preset(flow | PAPER_ARGUMENTS | _PAPER_ARGUMENTS[name], parameters)
    return Preset(dict(flow), parameters)
