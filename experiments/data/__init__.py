"""Data sets of the experiments: tables, images, and the five data sets of the MAF paper.

No data set is downloaded. Experiments list what a data folder lacks by `describe_missing`.
"""

from __future__ import annotations

__all__ = ["describe_missing"]


def describe_missing(title: str, files: str) -> str:
    """A line that says which files a data set needs.

    Example:
        >>> describe_missing("Adult", "adult.csv.gz")
        'Adult not found: --data must be a folder with adult.csv.gz'
    """
    return f"{title} not found: --data must be a folder with {files}"
