"""Training of flows by maximum likelihood."""

from elflow.training.batches import Rows
from elflow.training.engine import Training, fit
from elflow.training.loop import History, train
from elflow.training.presets import Preset, preset
from elflow.training.recipe import Recipe

__all__ = ["History", "Preset", "Recipe", "Rows", "Training", "fit", "preset", "train"]
