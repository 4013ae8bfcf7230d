"""Preparation of a fit: settings, split into training and validation rows, encoded rows in memory or in files."""
