"""Bodies of the APIs that engines serve."""
