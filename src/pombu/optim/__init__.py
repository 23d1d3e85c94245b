"""Objectives, and the updates of policies and value functions that follow them."""
