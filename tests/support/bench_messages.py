"""MSG frames as the broker sends them, for consumers of the benchmark."""



def message(msg_id: int, stamp: int, size: int = 20) -> bytes:
    return b"MSG t %d 1 1781767800000000000 %012x-0-100000 %d\n" % (msg_id, stamp, size) + b"x" * size + b"\n"
