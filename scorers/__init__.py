"""Decision plugins: filters, scorers and pickers, with the profile that runs them."""
