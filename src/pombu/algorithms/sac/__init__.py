"""SAC, by Stable-Baselines3."""
