"""Which clients have hung up, though their connections are not read."""

import socket
from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any

from toymq_py.net.hang_ups import hung_up


def test_those_that_hung_up_are_found_though_they_are_not_read() -> None:
    with ExitStack() as open_sockets:
        pairs = {name: socket.socketpair() for name in ("open", "sent", "closed", "sent and closed", "half closed")}
        for pair in pairs.values():
            for each in pair:
                open_sockets.enter_context(each)
        transports: dict[str, Any] = {
            name: SimpleNamespace(get_extra_info={"socket": ours}.get) for name, (ours, _) in pairs.items()
        }
        transports["without a socket"] = SimpleNamespace(get_extra_info={}.get)
        for name, (_, its) in pairs.items():
            if "sent" in name:
                its.sendall(b"x")
            if "half" in name:
                its.shutdown(socket.SHUT_WR)
            elif "closed" in name:
                its.close()
        gone = {"closed", "sent and closed", "half closed"}
        assert set(hung_up(transports)) == gone
        for ours, _ in pairs.values():
            ours.close()
        assert hung_up(transports) == [], "the broker has closed them"
