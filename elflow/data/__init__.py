"""Data: toy distributions whose entropies are known, and images in files."""

from elflow.data import toy
from elflow.data.grids import write_grid
from elflow.data.images import Images, read_images

__all__ = ["Images", "read_images", "toy", "write_grid"]
