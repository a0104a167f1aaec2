"""A process that sends PING every few milliseconds: a late PONG is a stall of the broker's event loop.

``python -m toymq_bench.pinger HOST PORT SECONDS`` prints the round trips, counted by microsecond, as JSON. It is a separate
process, since a busy load generator would read the replies late.
"""

import json
import sys
import time
from collections import Counter

from toymq_bench.broker import connect
from toymq_bench.load import now_us

INTERVAL_S = 0.002


def main(host: str, port: int, seconds: float) -> Counter[int]:
    """Send PINGs for ``seconds``, and count the round trips by microsecond. Raises: OSError."""
    found: Counter[int] = Counter()
    with connect(host, port) as connection:
        end_us = now_us() + seconds * 1e6
        while (began_us := now_us()) < end_us:
            connection.sendall(b"PING\n")
            reply = b""
            while not reply.endswith(b"\n"):
                data = connection.recv(64)
                if not data:
                    raise ConnectionResetError("the broker closed the connection")
                reply += data
            taken_us = now_us() - began_us
            found[taken_us] += 1
            time.sleep(max(INTERVAL_S - taken_us / 1e6, 0))
    return found


if __name__ == "__main__":
    sys.stdout.write(json.dumps(main(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]))))
