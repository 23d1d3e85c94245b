"""What limits a run: its learned world against real episodes, in figures and words."""
