"""A fake connection to another worker or group, for code that only asks whether that is reached."""

import asyncio
from collections.abc import Callable, Sequence


class FakePlaceLink:
    """A fake ``PlaceLink``, which is connected at once, or is lost or refused a moment later."""

    def __init__(self, lost: Callable[[], None], *, reached: bool, refusal: str = "") -> None:
        self.finishing = self.closed = False
        self.reached, self.refusal = reached, refusal
        self.on_reached: Callable[[], None] = lambda: None
        if not reached:
            asyncio.get_running_loop().call_soon(lost)

    def send(self, pieces: Sequence[bytes]) -> None:
        raise AssertionError("nothing is asked")

    def finish(self) -> None: ...

    def pause(self) -> None: ...

    def resume(self) -> None: ...

    def close(self) -> None:
        self.closed = True
