"""Other brokers beside ours: a driver each, one runner, the same load generator for all."""
