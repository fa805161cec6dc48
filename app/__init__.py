"""The process and its command line."""
