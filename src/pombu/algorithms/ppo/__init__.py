"""PPO, by sbx."""
