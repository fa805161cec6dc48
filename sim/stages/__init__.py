"""Where prompts are computed on servers with roles: policies on several ratios of them, and a page of figures."""
