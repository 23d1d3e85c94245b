"""One file per algorithm, in its paper's order and symbols."""
