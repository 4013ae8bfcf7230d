"""Tables and images in files: CSV, Parquet, JSON Lines, npz, idx, CIFAR-10, folders of image files."""

from elflow.io.grids import make_grid, write_grid
from elflow.io.images import Images, read_images
from elflow.io.streams import TableStream, open_stream
from elflow.io.tables import TableScan, TableWriter, read_table, scan_table

__all__ = [
    "Images",
    "TableScan",
    "TableStream",
    "TableWriter",
    "make_grid",
    "open_stream",
    "read_images",
    "read_table",
    "scan_table",
    "write_grid",
]
