"""Half-close of a TCP connection: no more is sent, what the peer still sends is received (RFC 9293, 3.6)."""

import asyncio


def end_writing(transport: asyncio.Transport) -> None:
    """Send FIN behind what was written, where the transport can.

    A connection that the peer has reset is aborted: its loss may not be reported yet, and then asyncio, in contrast to uvloop,
    raises OSError.
    """
    if not transport.can_write_eof():
        return
    try:
        transport.write_eof()
    except OSError:
        transport.abort()
