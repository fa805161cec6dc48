"""What caches of other sizes would find of the requests that are routed."""
