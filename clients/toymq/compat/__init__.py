"""Other queues' interfaces on ours, for programs that were written to them. Contract: dialects.md."""
