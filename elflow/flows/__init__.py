"""Flows: density models whose `flow(context)` is a torch distribution."""

from elflow.flows.elf import ELF
from elflow.flows.image import ImageELF
from elflow.flows.presets import PRESETS, Preset, preset

__all__ = ["ELF", "PRESETS", "ImageELF", "Preset", "preset"]
