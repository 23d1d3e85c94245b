"""How many cores there are to use; commands that must be quick ask for it too."""

import os


def usable_cores() -> int:
    """Cores that this process may use: those it is pinned to, if it is."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
