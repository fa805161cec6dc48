"""A second configuration that scores live requests and routes none."""
