"""Stands in for mpi4py, which upstream's model file imports and does not use at rank 0."""
