"""Answers of a running process as tables for people."""
