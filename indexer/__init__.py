"""Where blocks are: block keys, the block index, capacity, prefix matching."""
