"""Engine events: wire formats, the state machine of each publisher's stream, and the ZMQ subscriber."""
