"""One HTML page about one or more runs, which needs nothing beside itself."""
