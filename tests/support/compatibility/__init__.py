"""What the reference picker has, and the page that says what kvatlas does with it."""
