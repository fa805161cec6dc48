"""Diagnosis of requests whose stages run on different servers."""
