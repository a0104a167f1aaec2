"""The version of this release: read by the build, told by the broker."""

__version__ = "0.1.0"
