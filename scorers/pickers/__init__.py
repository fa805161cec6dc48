"""Pickers, which choose endpoints by their totals."""
