"""Hit rates that caches of other sizes would have on the routed requests."""
