"""Expected time to first token: features, regression of their costs, and the scorer that uses it."""
