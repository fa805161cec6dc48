"""The block index: block keys, holders, ledgers, capacity, prefix matching."""
