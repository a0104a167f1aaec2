"""Histories of what clients saw, and a checker that holds them against the promises. Contract: reliability.md."""
