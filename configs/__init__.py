"""The configuration schema, its loader and the shipped YAML files."""
