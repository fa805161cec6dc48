"""What to prefer: endpoint state, filters, scorers, pickers, profiles, decisions."""
