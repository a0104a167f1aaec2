"""Changes of a topic's settings, one at a time: each sees the result of the one before, and they share a temp file. The
topic's incarnation is in that file, too.

Contract: storage.md, "topic.json"; delivery.md, "Per-topic settings". Belongs to the event loop.
"""

import secrets
from collections import deque
from collections.abc import Callable

from toymq_py.callbacks import call_all
from toymq_py.config.topic_settings import TopicSettings
from toymq_py.errors import RequestError
from toymq_py.storage import topic_settings as settings_file
from toymq_py.storage.commit.sync_threads import Scheduler
from toymq_py.storage.fs import FileSystem
from toymq_py.storage.offsets import LoadedOffsets
from toymq_py.storage.offsets_flusher import Done
from toymq_py.storage.recovery import RecoveredLog

Change = Callable[[TopicSettings], TopicSettings | None]
"""Returns the settings to store, given those in force, or None when they stay. Raises: RequestError to refuse."""


def incarnation_of_log(recovered: RecoveredLog, loaded: LoadedOffsets | None, settings: str | None) -> str:
    """The incarnation of a log, from the first of its files that names one; otherwise a new one."""
    consumers = None if loaded is None else loaded.state.incarnation
    return recovered.incarnation or consumers or settings or secrets.token_hex(8)


class SettingsQueue:
    """Changes of one topic's settings, carried out one at a time; and its incarnation (ADR 0135)."""

    def __init__(
        self,
        fs: FileSystem,
        scheduler: Scheduler,
        path: str,
        *,
        present: Callable[[], TopicSettings],
        apply: Callable[[TopicSettings], None],
        is_empty: Callable[[], bool] = lambda: True,
        incarnation: str | None = None,
        log_incarnation: str,
    ) -> None:
        """
        Args:
            path: the topic's directory.
            present: returns the settings in force.
            apply: takes settings into use that are on stable storage.
            is_empty: returns whether the topic never had a message, so that its directory may have to be made.
            incarnation: the topic's, if ``topic.json`` has one.
            log_incarnation: the incarnation that the topic gets otherwise.
        """
        self.incarnation = incarnation
        """The incarnation as it is on stable storage; None: it was not asked for yet."""
        self.problem: str | None = None
        """Why the settings of the disk are not in force: only new ones may replace them."""
        self._fs = fs
        self._scheduler = scheduler
        self._path = path
        self._present = present
        self._apply = apply
        self._is_empty = is_empty
        self._log_incarnation = log_incarnation
        self._waiting: deque[tuple[Callable[[], None], Done | None]] = deque()  # the one at the head runs

    @property
    def asked(self) -> bool:
        """Whether ``topic.json`` has the incarnation, or a caller waits for it."""
        return self.incarnation is not None or bool(self._waiting)

    def change(self, make: Change, done: Done) -> None:
        """Queue a change. ``done`` is called when the new settings are on stable storage and in use, or with the error."""
        self._waiting.append((lambda: self._begin(make, done), done))
        if len(self._waiting) == 1:
            self._begin(make, done)

    def identify(self, done: Callable[[], None]) -> None:
        """Call ``done`` when the incarnation is on stable storage, or cannot be stored: the disk is full, or the file cannot be
        trusted. At once if it is stored already."""
        if self.incarnation is not None or self.problem is not None:
            done()
            return

        def unless_known(present: TopicSettings) -> TopicSettings | None:
            return present if self.incarnation is None and self.problem is None else None

        self.change(unless_known, lambda error: done())

    def refuse_waiting(self, error: RequestError) -> None:
        """Refuse the changes that have not begun. The one that runs goes on."""
        if self._waiting:
            head, *others = self._waiting
            self._waiting = deque([head, *(other for other in others if other[1] is None)])
            call_all([done for _, done in others if done is not None], error)

    def when_idle(self, call: Callable[[], None]) -> None:
        """Call ``call`` when all queued changes are done; at once when there are none."""
        if self._waiting:
            self._waiting.append((lambda: self._end(lambda error: call(), None), None))
        else:
            call()

    def _begin(self, make: Change, done: Done) -> None:
        try:
            settings = make(self._present())
        except RequestError as error:
            self._end(done, error)
            return
        if settings is None:
            self._end(done, None)
        else:
            self._store(settings, done)

    def _store(self, settings: TopicSettings, done: Done) -> None:
        errors: list[OSError] = []
        same = settings == self._present() and self.problem is None
        incarnation, makes = self.incarnation or self._log_incarnation, self._is_empty()

        def job() -> None:
            try:
                settings_file.store(self._fs, self._path, settings, incarnation, makes=makes)
            except OSError as error:
                errors.append(error)

        def stored() -> None:
            if not errors:
                self.incarnation, self.problem = incarnation, None
                if not same:
                    self._apply(settings)
            self._end(done, errors[0] if errors else None)

        self._scheduler.offload(job, stored)

    def _end(self, done: Done, error: OSError | RequestError | None) -> None:
        self._waiting.popleft()
        done(error)
        if self._waiting:
            self._waiting[0][0]()
