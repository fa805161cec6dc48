"""Request bodies of the APIs that engines serve, parsed into prompts."""
