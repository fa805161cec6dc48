"""Several configurations in real time, one after another on the same simulated servers with the same chats."""
