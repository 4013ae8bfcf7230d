"""Model files of fitted densities: configuration, weights, and scores of fixed rows that verify a file."""
