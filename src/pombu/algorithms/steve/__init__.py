"""STEVE."""
