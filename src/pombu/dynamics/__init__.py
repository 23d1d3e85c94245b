"""Learned dynamics: ensembles, their fit, termination, error and disagreement."""
