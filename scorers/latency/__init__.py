"""Expected time to first token: what it is made of, how its coefficients are learned, and the scorer by it."""
