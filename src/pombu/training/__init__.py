"""Runs: their folder, checkpoints, logs, display, callbacks and the learn loop."""
