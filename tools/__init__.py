"""What makes the documentation, its pictures and the release."""
