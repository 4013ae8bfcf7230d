"""Questions about the rows and columns of a fitted density: scores, samples, conditional distributions, imputation.

Each module `_*_queries.py` has the methods of `FlowDensity` for one kind of question, as a base class. The others
are their parts: conditions on columns in `_given.py`, results in `_conditional.py` and `_info.py`.
"""
