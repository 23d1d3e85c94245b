"""What happens to runs that are killed, damaged or asked for nonsense: counted.

    python -m benchmarks.reliability               # all of it, about 25 minutes
    python -m benchmarks.reliability kills flips --share 0.1

writes `results/reliability.json` and `results/reliability.md`. The exit code is 1 if
anything was silently wrong, unexpected, or hung.
"""
