"""Listening sockets, certificates, and the host names that a listener answers to."""
