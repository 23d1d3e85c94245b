"""ME-TRPO."""
