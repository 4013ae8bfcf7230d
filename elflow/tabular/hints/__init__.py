"""Hints about columns that a density should not have: functions of others, constants, identifiers and cyclic times."""
