"""A broker on the simulated disk, the bucket of its tier, and what a restore of that bucket gives."""

from contextlib import suppress

from tests.support.broker_rig import DIR, BrokerRig
from tests.support.buckets import Killed
from toymq_py.runtime.tier_thread import look_at
from toymq_py.tier.bucket import Bucket, BucketError
from toymq_py.tier.check import check
from toymq_py.tier.keys import Place
from toymq_py.tier.restore import Restored, restore
from toymq_py.tier.uploads import Round, Uploads

AGAIN = "/data/again"
PAYLOAD = bytes(700)
"""Five of them fill a segment."""


class TierRig(BrokerRig):
    """A broker with a tier."""

    def __init__(self, bucket: Bucket, **options: object) -> None:
        super().__init__(**options)
        self.bucket = bucket
        self.uploads = self.another_process()

    def another_process(self) -> Uploads:
        return Uploads(self.disk, self.bucket, self.clock.wall_ns)

    def round(self) -> Round:
        """As the thread does. Raises: BucketError, Killed."""
        self.advance(20)
        look_at(self.broker)  # makes the incarnations
        self.loop.drain()
        return self.uploads.round(*look_at(self.broker))

    def rounds(self, count: int) -> None:
        """Rounds that may fail, or end their process."""
        for _ in range(count):
            try:
                with suppress(BucketError):
                    self.round()
            except Killed:
                self.uploads = self.another_process()

    def place(self, topic: str = "t") -> Place:
        incarnation = self.broker.topic(topic).settings_queue.incarnation
        assert incarnation is not None
        return Place(topic, incarnation)

    def sealed_below(self, topic: str = "t") -> int:
        """The first id that is not in a sealed segment."""
        return self.broker.topic(topic).log.segments[-1].base_id

    def findings(self, *, repair: bool = False) -> list[str]:
        return [found.text for found in check(self.disk, self.bucket, DIR, repair=repair)]

    def restored(self) -> tuple[BrokerRig, dict[str, Restored]]:
        """A broker on what a restore of the bucket gives."""
        done = {each.place.topic: each for each in restore(self.disk, self.bucket, AGAIN, pid=1)}
        return BrokerRig(disk=self.disk, data_dir=AGAIN), done
