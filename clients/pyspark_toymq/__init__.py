"""Spark looks into packages named ``pyspark_…`` for a ``DefaultSource``: so it knows ``format("toymq")`` by itself."""

from toymq_spark.datasource import ToymqDataSource as DefaultSource

__all__ = ["DefaultSource"]
