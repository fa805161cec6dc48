"""Token ids from engines, over HTTP."""
