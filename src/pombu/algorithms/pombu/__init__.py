"""POMBU and MEPPO."""
