"""An archive as a table of a lake format: Delta Lake or Apache Iceberg. Knows nothing of brokers."""
