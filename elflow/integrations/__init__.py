"""Adapters for other packages: `sbi` for simulation-based inference, and `pyod` for anomaly detection.

Neither is imported here: each module needs its own package, `pip install 'elflow[sbi]'` or `'elflow[pyod]'`.
"""
