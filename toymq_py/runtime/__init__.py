"""The event loop that a broker runs on, and the memory of its process."""
