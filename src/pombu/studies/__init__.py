"""Studies: grids of runs from one file, side by side on this machine or on Ray."""
