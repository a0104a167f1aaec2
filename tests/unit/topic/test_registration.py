"""A new consumer that skips messages is stored before it is served."""

from tests.support.broker_rig import BrokerRig
from toymq_py.consumer_options import Start
from toymq_py.topic import Registration


def test_where_a_new_consumer_begins_says_what_its_sub_waits_for() -> None:
    rig = BrokerRig()
    rig.publish("t", b"a", b"b")
    found = []
    for name, start in (("earliest", None), ("latest", Start.parse("latest")), ("earliest", None)):
        _, registration = rig.broker.topic("t").subscribe(
            name, start, mode="shared", window=1, visibility_s=None, wake=lambda _: True, ended=lambda _, code: None
        )
        found.append(registration)
    assert found == [Registration.NEW, Registration.NEW_AHEAD, Registration.KNOWN]
