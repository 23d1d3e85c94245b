"""Rollouts: imagined in learned dynamics or the simulator, and real ones."""
