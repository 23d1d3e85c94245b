"""Many runs, statistics, and the paper's figures and tables."""
