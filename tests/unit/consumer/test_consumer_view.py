"""What a consumer reports about itself. Its changes: test_consumer.py."""


from toymq_py.consumer import Consumer, DeliveryPolicy, IdSet, Lessee


def consumer_with(*, acked: tuple[int, ...] = (), scheduled: tuple[int, ...] = ()) -> Consumer:
    ids = IdSet()
    for msg_id in scheduled:
        ids.add(msg_id)
    consumer = Consumer("c", start=0, since_ns=0, scheduled=ids)
    for msg_id in acked:
        consumer.skip(msg_id, msg_id)
    return consumer


def test_what_is_unread_is_due_and_not_acked_whether_it_was_delivered_or_not() -> None:
    consumer = consumer_with(acked=(2, 3), scheduled=(5, 8))
    consumer.take_fresh(Lessee(9), 0, 1, 1e9)
    found, position = [], 0
    while (span := consumer.next_unread(position, 9)) is not None:
        found.append(span)
        position = span[1] + 1
    assert found == [(0, 1), (4, 4), (6, 7)]
    assert consumer.next_unread(8, 9) is None


def test_ids_that_are_passed_over_are_due_behind_the_cursor() -> None:
    consumer = consumer_with(acked=(2, 6), scheduled=(1,))
    consumer.pass_over(5)
    assert [msg_id for msg_id in range(7) if consumer.is_due(msg_id)] == [0, 3, 4, 5]
    assert consumer.cursor == 7, "6 is acked"
    consumer.take_each(Lessee(9), [0, 4], 1e9, 0.0)
    assert [msg_id for msg_id in range(7) if consumer.is_due(msg_id)] == [3, 5]
    assert consumer.inflight == 2


def test_what_waits_for_redelivery_is_counted_and_the_lowest_is_known() -> None:
    consumer, owner = consumer_with(), Lessee(9)
    assert consumer.first_ready() is None
    consumer.take_fresh(owner, 0, 4, 1e9)
    consumer.unsend(owner, 2, 3)
    assert (consumer.first_ready(), consumer.redeliverable, consumer.inflight) == (2, 2, 3)
    assert consumer.has_ready()
    assert not consumer.is_due(2)
    assert (consumer.floor, consumer.unacked(5), consumer.has_acked_all(0, 0)) == (0, 5, False)


def test_what_an_id_is_to_the_consumer_and_how_often_it_was_delivered() -> None:
    consumer, owner = consumer_with(acked=(0,), scheduled=(6,)), Lessee(9)
    consumer.take_fresh(owner, 1, 4, 1e9)
    consumer.nack([(2, 2)], 0.0, 60.0, DeliveryPolicy())
    consumer.give_up([(3, 3)])
    consumer.release(owner)
    consumer.take_ready(owner, 1, 1e9)
    states = {msg_id: consumer.state_of(msg_id) for msg_id in range(7)}
    assert (states[0], states[1]) == (("acked", 0), ("inflight", 2))
    assert (states[2], states[3]) == (("scheduled", 1), ("dying", 1))
    assert (states[5], states[6]) == (("ready", 0), ("scheduled", 0))
    assert states[4][0] == "ready"


def test_what_was_given_back_later_waits_and_what_is_scheduled_does_not() -> None:
    consumer, owner = consumer_with(acked=(1,), scheduled=(5, 6)), Lessee(9)
    assert consumer.waiting(8) == 5
    consumer.take_fresh(owner, 0, 0, 1e9)
    consumer.take_fresh(owner, 2, 3, 1e9)
    assert consumer.waiting(8) == 2
    consumer.nack([(2, 2)], 0.0, 60.0, DeliveryPolicy())
    assert (consumer.waiting(8), consumer.counts(8).ready) == (3, 2)
