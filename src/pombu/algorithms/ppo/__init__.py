"""PPO, by Stable-Baselines3."""
