"""Training of flows by maximum likelihood."""

from elflow.training.batches import Rows
from elflow.training.engine import Training, fit
from elflow.training.loop import History, train
from elflow.training.recipe import Recipe, image_recipe

__all__ = ["History", "Recipe", "Rows", "Training", "fit", "image_recipe", "train"]
