"""`kvatlas top`: a running process at a glance, again and again."""
