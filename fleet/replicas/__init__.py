"""Several processes of kvatlas that decide as one: each publishes what only it knows, and adds up what the others publish."""
