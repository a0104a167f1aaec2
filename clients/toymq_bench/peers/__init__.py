"""Compares toymq with other brokers ("peers"): a driver for each, one runner, one load generator."""
