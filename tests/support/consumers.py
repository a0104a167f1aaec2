"""Makes a consumer in a given state, and shows which of its messages would be redelivered."""

from toymq_py.consumer import Consumer, ConsumerSnapshot, DeliveryPolicy
from toymq_py.consumer.lease_run import Lessee, RunState
from toymq_py.topic.deliverer import ranges_of

POLICY = DeliveryPolicy()
S, T, U = Lessee(100), Lessee(100), Lessee(100)


def consumer(start: int = 0, *, delivered: int = 0) -> Consumer:
    """Make a consumer "c" with ``delivered`` messages leased to owner S until 30.0. Owners S, T and U have let no lease end
    before."""
    for lessee in (S, T, U):
        lessee.late = False
    it = Consumer("c", start=start, since_ns=7)
    if delivered:
        it.take_fresh(S, start, start + delivered - 1, 30.0)
    return it


def all_ready(it: Consumer) -> list[tuple[int, int, int]]:
    """Return what would be redelivered; the consumer itself is not changed."""
    again = [(run.first, run.last, run.attempt + 1) for run in it._runs if run.state is RunState.READY]
    return sorted(again + [(first, last, 1) for first, last in ranges_of(list(it._due))])


def restarted(it: Consumer, first_id: int = 0, next_id: int = 1000) -> Consumer:
    snapshot = ConsumerSnapshot.from_json(it.snapshot().to_json())
    return Consumer.restore(it.name, snapshot, first_id, next_id)[0]
