"""Pickers: what chooses among totals."""
