"""The class that Spark finds under the name ``toymq``."""

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from toymq_spark.options import parse_sink, parse_source
from toymq_spark.schema import source_schema, typed_schema
from toymq_spark.sink import BatchWriter, StreamWriter
from toymq_spark.source import StreamReader, batch_reader
from toymq_spark.values.formats import value_type


class ToymqDataSource(DataSource):
    """Topics of a toymq broker, or of a data directory, as tables and streams. Options: docs/spark.md."""

    @classmethod
    def name(cls) -> str:
        return "toymq"

    def schema(self) -> StructType | str:
        options = parse_source(self.options)
        if options.values is None:
            return source_schema(options.include_headers)
        return typed_schema(options.include_headers, value_type(options.values))

    def reader(self, schema: StructType) -> DataSourceReader:
        return batch_reader(parse_source(self.options, "batch"), schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return StreamReader(parse_source(self.options, "stream"), schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        return BatchWriter(parse_sink(self.options, "batch"), schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        return StreamWriter(parse_sink(self.options, "stream"), schema, overwrite)
