"""A fake broker in memory that answers OK to everything: for tests of what a client does before it sends a command.

Each connection is one end of a socket pair, and a thread has the other.
"""

import socket
import threading

from toymq_py.protocol import (
    Command,
    Config,
    Describe,
    Fetch,
    Hello,
    Offsets,
    Ping,
    Publish,
    Pull,
    Quit,
    ServerConnection,
    Stats,
    Subscribe,
    Topics,
)

MESSAGES = 64
"""That a subscription gets at once."""
_FIXED: dict[type, bytes] = {
    Hello: b"HELLO 1 server=fake/1 max_payload=2097152 nack_error=1 uncounted=1 lease=1\n",
    Ping: b"PONG\n",
    Pull: b"MSG t 0 1 1 - 1\nx\nOK 1\n",
    Fetch: b"BATCH t 0 0 0\n\n",
    Offsets: b"OFFSETS t 0 1\n",
    Config: b"JSON 2\n{}\n",
    Describe: b"JSON 2\n{}\n",
    Stats: b"JSON 2\n{}\n",
    Topics: b"JSON 2\n[]\n",
}


class ObligingBroker:
    """``connect`` replaces a client's ``connect_unix``. ``commands`` has all that was received except HELLO."""

    def __init__(self) -> None:
        self.commands: list[Command] = []
        self._ends: list[socket.socket] = []
        self._threads: list[threading.Thread] = []

    def connect(self, _: str) -> socket.socket:
        ours, theirs = socket.socketpair()
        theirs.setblocking(False)
        thread = threading.Thread(target=self._serve, args=(ours,), daemon=True)
        self._ends.append(ours)
        self._threads.append(thread)
        thread.start()
        return theirs

    def close(self) -> None:
        """Close all connections."""
        for end in self._ends:
            try:
                end.shutdown(socket.SHUT_RDWR)
            except OSError:
                continue
        for thread in self._threads:
            thread.join()

    def _serve(self, end: socket.socket) -> None:
        wire = ServerConnection(1 << 21)
        with end:
            while data := end.recv(65536):
                wire.receive_data(data)
                while commands := wire.next_commands(512):
                    self.commands += [command for command in commands if not isinstance(command, Hello)]
                    end.sendall(b"".join(map(_reply, commands)))
                    if any(isinstance(command, Quit) for command in commands):
                        return


def _reply(command: Command) -> bytes:
    if isinstance(command, Publish):
        return b"OK 0\n" * len(command.keys)
    if isinstance(command, Subscribe):
        topic = command.topic.replace("*", "x").encode()
        return b"OK 0\n" + b"".join(b"MSG %b %d 1 1 - 1\nx\n" % (topic, number) for number in range(MESSAGES))
    return _FIXED.get(type(command), b"OK 1\n")
