"""`kvatlas top`: a live view of a running process."""
