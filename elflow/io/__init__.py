"""Tables and images in files: CSV, Parquet, npz, idx, CIFAR-10, folders of images."""

from elflow.io.grids import write_grid
from elflow.io.images import Images, read_images
from elflow.io.tables import TableWriter, read_table, scan_table

__all__ = ["Images", "TableWriter", "read_images", "read_table", "scan_table", "write_grid"]
