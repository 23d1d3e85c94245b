"""DHMBPO."""
