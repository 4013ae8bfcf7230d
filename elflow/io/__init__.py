"""Tables and images in files: CSV, Parquet, npz, idx, CIFAR-10, folders of image files."""

from elflow.io.grids import make_grid, write_grid
from elflow.io.images import Images, read_images
from elflow.io.tables import TableScan, TableWriter, read_table, scan_table

__all__ = [
    "Images",
    "TableScan",
    "TableWriter",
    "make_grid",
    "read_images",
    "read_table",
    "scan_table",
    "write_grid",
]
