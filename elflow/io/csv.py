"""Text tables: dialects and blocks of rows."""

from elflow.io._csv import Dialect, blocks, open_bytes, sniff

__all__ = ["Dialect", "blocks", "open_bytes", "sniff"]
