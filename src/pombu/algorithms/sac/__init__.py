"""SAC, and DroQ, TQC and CrossQ which share its loop, by sbx."""
