"""A fake source of figures for the screen of `toymqctl top`, without a broker."""

from typing import Any

from toymqctl.lines import Row
from toymqctl.top.poller import Feed


class ToldFeed(Feed):
    """Returns what the test sets, and counts the requests."""

    address = "broker:6789"

    def __init__(self, *answers: dict[str, Any] | Exception) -> None:
        self.answers = list(answers)
        self.letters: list[Row] | Exception = []
        self.asked: list[str] = []
        self.lost: str | None = None

    @property
    def trouble(self) -> str | None:
        return self.lost

    async def stats(self) -> dict[str, Any]:
        self.asked.append("stats")
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def newest(self, topic: str, count: int) -> list[Row]:
        self.asked.append(topic)
        if isinstance(self.letters, Exception):
            raise self.letters
        return self.letters
