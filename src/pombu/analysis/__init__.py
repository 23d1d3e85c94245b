"""What finished runs show: curves, statistics, plots, diagnosis and pages."""
