"""What the server does beside its sessions."""

from tests.support.sim_served import SimServed
from toymq_py.server import DISCONNECTS_S


def test_how_many_left_is_told_when_those_who_leave_with_them_are_gone() -> None:
    told: list[tuple[int, int]] = []
    with SimServed(on_disconnects=lambda most, now: told.append((most, now))) as served:
        clients = [served.client(b"PING\n") for _ in range(20)]
        served.advance(0.1)
        while len(clients) > 5:
            clients.pop().transport.close()
            served.advance(0.01)
        assert not told, "others that leave are waited for"
        served.advance(DISCONNECTS_S)
        assert told == [(20, 5)]
        served.client(b"PING\n").transport.close()  # one comes and goes
        served.advance(10 * DISCONNECTS_S)
        assert told == [(20, 5), (6, 5)]
