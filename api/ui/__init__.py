"""Files of the dashboard: one page, its styles and its modules."""
