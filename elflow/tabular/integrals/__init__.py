"""Integrals of a joint density over some of its features, by quadrature along a feature or by importance sampling.

The modules work on features z and their log-density; `queries` translates between columns and features.
"""
