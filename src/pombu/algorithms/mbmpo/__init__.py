"""MB-MPO."""
