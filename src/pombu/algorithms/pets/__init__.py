"""PETS."""
