"""What engines say of themselves: where they publish events and load (SGLang's `/server_info`), and that load."""
