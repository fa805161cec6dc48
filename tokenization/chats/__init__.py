"""Chats as the engine's template renders them."""
