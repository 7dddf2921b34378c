"""What a tuner may ask: our own trainer, a Python function, any command, a replay table."""
