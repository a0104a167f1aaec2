"""``format("toymq")`` for writing: Spark's interface, and the identity of a task.

Contract: spark.md, "Sink". Writers are pickled and sent to executors. ``commit`` and ``abort`` do nothing: the rows of a task
are published when the task ends.
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
    """The result that a task reports to the driver."""

    published: int
    duplicates: int
    skipped: int


def current_task(options: SinkOptions, run: str, *, known: bool) -> Task:
    """Return the identity of the running task.

    In a streaming query, or in its ``foreachBatch``, a task is identified by query and batch, also after a restart from the
    checkpoint; in a plain batch by the option producerId.

    Args:
        run: the writer's id, which all tasks of this attempt share.
        known: whether to refuse a plain batch without producerId; if not, each attempt counts as a new one.

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
    """Return the identity of a task from Spark's properties of it; see ``current_task``. Raises: OptionError."""
    sink = options.producer_id or options.topic or "topic-column"
    if query_id is not None and batch_id is not None:
        return Task(f"spark.{query_id}.{sink}", partition, int(batch_id), run)
    if options.producer_id is not None:
        return Task(f"spark.{sink}", partition, 0, run)
    if known:
        raise OptionError(f"Spark does not name the query and batch (no {QUERY_ID}, {BATCH_ID}): set producerId")
    return Task(f"spark.{run}.{sink}", partition, 0, run)


class _Writer:
    """Base of both writers. One is created for each batch or query, and copied to its tasks."""

    _known: bool

    def __init__(self, options: SinkOptions, schema: StructType, overwrite: bool) -> None:
        """Check the options and the columns. Raises: OptionError."""
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
    """The writer of ``df.write``, also within ``foreachBatch``. Without producerId the rows of a retried task are published
    once, but those of a repeated job again."""

    _known = False


class StreamWriter(_Writer, DataSourceStreamArrowWriter):
    """The writer of ``df.writeStream``."""

    _known = True
