"""LMCache's servers as publishers: the batches that they post to a coordinator."""
