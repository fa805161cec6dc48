"""The servers: found, followed, loaded, accounted, saved."""
