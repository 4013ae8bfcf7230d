"""Training of flows by maximum likelihood: `fit`, its settings and its record."""

from elflow.training.loop import fit
from elflow.training.recipe import OPTIMIZERS, SCHEDULES, Recipe, image_recipe
from elflow.training.record import Training, format_duration
from elflow.training.rows import Rows

__all__ = ["OPTIMIZERS", "SCHEDULES", "Recipe", "Rows", "Training", "fit", "format_duration", "image_recipe"]
