"""Group commit: records become durable, many with one sync. Contract: storage.md."""
