"""toymq_py: a small persistent message broker. Importing it loads no broker module."""

__version__ = "0.1.0"
__all__ = ["__version__"]
