"""One package per algorithm, in its paper's order and symbols."""
