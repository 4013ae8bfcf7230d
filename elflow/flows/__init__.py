"""Flows: density models whose `flow(context)` is a torch distribution."""

from elflow.flows.elf import ELF

__all__ = ["ELF"]
