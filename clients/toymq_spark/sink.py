"""``format("toymq")`` for writing: Spark's interface, and the identity of a task.

Contract: spark.md, "Sink". Writers are pickled and sent to executors. ``commit`` and ``abort`` do nothing: a row is published
when its task has ended.
"""

import uuid
from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from toymq_spark.claims import Task
from toymq_spark.errors import OptionError
from toymq_spark.options import SinkOptions
from toymq_spark.publishing import BrokerPublisher, write_task
from toymq_spark.rows import check_columns, rows_of
from toymq_spark.values.codec import Codec
from toymq_spark.values.formats import codec_of
from toymq_spark.values.typed import encoded

QUERY_ID = "sql.streaming.queryId"
BATCH_ID = "streaming.sql.batchId"


@dataclass
class Written(WriterCommitMessage):
    """Result of a task."""

    published: int
    duplicates: int
    skipped: int


def current_task(options: SinkOptions, run: str, *, known: bool) -> Task:
    """Identity of the running task.

    In a stream, its ``foreachBatch`` included, query and batch identify a task, also after a restart from the checkpoint. A
    plain batch is identified by its producerId.

    Args:
        run: id of the writer, which all tasks of this attempt share.
        known: refuse a plain batch without producerId; otherwise each run is a new one.

    Raises: OptionError when Spark does not identify the task.
    """
    context = TaskContext.get()
    if context is None:
        raise OptionError("not in a Spark task: use df.write or df.writeStream")
    query_id, batch_id = context.getLocalProperty(QUERY_ID), context.getLocalProperty(BATCH_ID)
    return task_of(options, run, context.partitionId(), query_id, batch_id, known=known)


def task_of(
    options: SinkOptions, run: str, partition: int, query_id: str | None, batch_id: str | None, *, known: bool
) -> Task:
    """Raises: OptionError."""
    sink = options.producer_id or options.topic or "topic-column"
    if query_id is not None and batch_id is not None:
        return Task(f"spark.{query_id}.{sink}", partition, int(batch_id), run)
    if options.producer_id is not None:
        return Task(f"spark.{sink}", partition, 0, run)
    if known:
        raise OptionError(f"Spark does not name the query and batch (no {QUERY_ID}, {BATCH_ID}): set producerId")
    return Task(f"spark.{run}.{sink}", partition, 0, run)


class _Writer:
    """Base of both writers. Created once per batch or query, and copied to its tasks."""

    _known: bool

    def __init__(self, options: SinkOptions, schema: StructType, overwrite: bool) -> None:
        """Raises: OptionError."""
        if overwrite:
            raise OptionError("a topic cannot be overwritten: use mode(\"append\"), or outputMode append or update")
        kinds = {field.name: field.dataType.simpleString() for field in schema}
        self._codec: Codec | None = None
        if options.values is not None and "value" in kinds:
            self._codec = codec_of(options.values, schema["value"].dataType, reading=False)
            kinds["value"] = "binary"
        check_columns(kinds, options.topic)
        self._options = options
        self._run = uuid.uuid4().hex

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        task = current_task(self._options, self._run, known=self._known)
        publisher = BrokerPublisher(self._options.address)
        try:
            batches = iterator if self._codec is None else encoded(iterator, self._codec)
            rows = rows_of(batches, self._options.topic)
            outcome = write_task(publisher, task, rows, self._options.skip_batch)
        finally:
            publisher.close()
        return Written(outcome.published, outcome.duplicates, outcome.skipped)


class BatchWriter(_Writer, DataSourceArrowWriter):
    """``df.write``, also within ``foreachBatch``. Without producerId a repeated task publishes once, a repeated job again."""

    _known = False


class StreamWriter(_Writer, DataSourceStreamArrowWriter):
    """``df.writeStream``."""

    _known = True
