"""Several worker processes of one kvatlas, for loads beyond one core."""
