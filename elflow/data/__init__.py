"""Data: toy distributions whose entropies are known, images in files, and the tables that flows are measured on."""

from elflow.data import toy
from elflow.data.grids import write_grid
from elflow.data.images import Images, read_images
from elflow.data.maf import MAF_SETS, REDRAWN_SETS, Splits, find_maf, maf_files, read_maf

__all__ = [
    "MAF_SETS",
    "REDRAWN_SETS",
    "Images",
    "Splits",
    "find_maf",
    "maf_files",
    "read_images",
    "read_maf",
    "toy",
    "write_grid",
]
