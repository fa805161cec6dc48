"""The dashboard, as browsers get it: one page, its styles and its modules."""
