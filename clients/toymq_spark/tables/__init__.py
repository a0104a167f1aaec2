"""Archives as tables of a lake format: Delta Lake or Apache Iceberg. Does not know brokers."""
