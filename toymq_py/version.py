"""The version of this release, which the build reads and the broker reports."""

__version__ = "0.1.0"
