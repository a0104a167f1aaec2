"""The shared services of a broker's topics."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from toymq_py.auth.quotas import Quotas
from toymq_py.believed_time import BelievedTime
from toymq_py.clock import Clock
from toymq_py.config.options import BrokerOptions
from toymq_py.consumer import FailureBudget
from toymq_py.dedupe import KeyBudget
from toymq_py.metrics import Metrics
from toymq_py.storage.commit.commit_place import CommitPlace
from toymq_py.storage.commit.space_guard import SpaceGuard
from toymq_py.storage.commit.sync_threads import Scheduler
from toymq_py.storage.fs import FileSystem
from toymq_py.storage.offsets_flusher import OffsetsFlusher
from toymq_py.storage.open_files import OpenFiles
from toymq_py.storage.tail_cache import TailBudget
from toymq_py.topic.channel import Subscription
from toymq_py.topic.delivery_budget import DeliveryBudget
from toymq_py.topic.delivery_permit import DeliveryPermit
from toymq_py.topic.ticker import Due


@dataclass(slots=True)
class TopicServices:
    """The services that all topics of a broker share."""

    fs: FileSystem
    scheduler: Scheduler
    clock: Clock
    options: BrokerOptions
    metrics: Metrics
    quotas: Quotas
    space: SpaceGuard
    place: CommitPlace
    flusher: OffsetsFlusher
    files: OpenFiles
    key_budget: KeyBudget
    failure_budget: FailureBudget
    tail_budget: TailBudget
    permit: DeliveryPermit
    arm: Callable[[Due, float], None]
    """Has an object's ``due`` called at a monotonic time, in seconds."""
    rejoin: Callable[[str, Sequence[Subscription]], None]
    """Attaches the sessions of patterns again to a topic whose consumer was moved; the others subscribe anew (ADR 0109)."""
    lost: Callable[[], str | None]
    """Why the data directory is not this broker's any more, None while it is; see ``DirectoryLock.lost``. Blocks."""
    believed: BelievedTime = field(init=False)
    budget: DeliveryBudget = field(init=False)

    def __post_init__(self) -> None:
        self.budget = DeliveryBudget(self.options.max_unacked, self.quotas, self.scheduler)
        self.believed = BelievedTime(self.clock)
