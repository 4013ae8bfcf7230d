"""Parts of a fit before and after training.

Before it: settings, the split into training and validation rows, encoded rows in memory or in files. After it: factors
of combinations of categories.
"""
