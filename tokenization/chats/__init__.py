"""Chat messages and templates: conversations rendered to text as the engine renders them."""
