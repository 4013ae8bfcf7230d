"""Training of flows by maximum likelihood: `fit`, its settings and its record."""

from elflow.training.devices import (
    DEVICES,
    PRECISIONS,
    LostProcessError,
    choose_device,
    launch,
    make_fabric,
    name_lost_process,
)
from elflow.training.loop import fit
from elflow.training.muon import Muon
from elflow.training.permutations import MAX_STORED, Permutation, scramble
from elflow.training.recipe import OPTIMIZERS, SCHEDULES, Recipe, image_recipe
from elflow.training.record import Training, format_duration
from elflow.training.rows import Rows
from elflow.training.threads import sharing_threads

__all__ = [
    "DEVICES",
    "MAX_STORED",
    "OPTIMIZERS",
    "PRECISIONS",
    "SCHEDULES",
    "LostProcessError",
    "Muon",
    "Permutation",
    "Recipe",
    "Rows",
    "Training",
    "choose_device",
    "fit",
    "format_duration",
    "image_recipe",
    "launch",
    "make_fabric",
    "name_lost_process",
    "scramble",
    "sharing_threads",
]
