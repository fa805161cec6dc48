"""Request bodies to token ids: the engine's own ids of every prompt."""
