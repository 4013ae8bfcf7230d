"""Flows: density models whose `flow(context)` is a torch distribution."""

from elflow.flows.elf import ELF
from elflow.flows.image import ImageELF

__all__ = ["ELF", "ImageELF"]
