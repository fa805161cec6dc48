"""Published runs with rising rates, replayed stage by stage beside their published figures."""
