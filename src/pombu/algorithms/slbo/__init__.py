"""SLBO."""
