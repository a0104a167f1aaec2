"""What the server does beside its sessions."""

from tests.support.sim_served import SimServed
from toymq_py.server import CROWD, LEFT_S


def test_only_a_crowd_that_left_is_worth_a_look_at_the_memory() -> None:
    """Found by a broker under load: each health check that ended began rounds of collecting, 6 % of its time."""
    looks: list[int] = []
    with SimServed(some_left=lambda: looks.append(len(clients))) as served:
        clients = [served.client(b"PING\n") for _ in range(CROWD)]
        served.advance(0.1)
        for _ in range(3 * CROWD):  # one comes, one goes
            served.client(b"PING\nQUIT\n")
            served.advance(0.01)
        served.advance(LEFT_S)
        assert not looks
        served.client(b"PING\n")
        served.advance(0.01)
        while clients:
            clients.pop().transport.close()
        served.advance(LEFT_S / 2)
        assert not looks, "others that leave are waited for"
        served.advance(LEFT_S)
        assert looks == [0]
        served.advance(10 * LEFT_S)
        assert looks == [0]
