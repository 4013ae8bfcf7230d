"""Worked examples of the documentation: their code with full settings, what it prints, and their figures."""
