"""Comparison with other brokers: a driver for each, one runner, one load generator."""
