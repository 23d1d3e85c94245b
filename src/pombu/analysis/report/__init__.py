"""The report: one HTML page about runs, which needs nothing beside itself."""
