"""The report of a backup: what it copied, and what it found."""

from dataclasses import dataclass, field

from toymq_py.storage.offline.verify import TopicReport


@dataclass(slots=True)
class BackupReport:
    """Result of a backup. ``reports`` are those of ``verify`` on the copy."""

    copied: set[str] = field(default_factory=set)
    """The segments that were copied, by their paths in the backup."""
    kept: set[str] = field(default_factory=set)
    """The sealed segments that an earlier backup had copied."""
    copied_bytes: int = 0
    problems: list[str] = field(default_factory=list)
    gone: list[str] = field(default_factory=list)
    """The topics that the source does not have, and whose copies stay."""
    superseded: list[tuple[str, str]] = field(default_factory=list)
    """The topics whose copies were put aside, since another log has their place, and where these copies are."""
    reports: list[TopicReport] = field(default_factory=list)

    def problem(self, text: str) -> None:
        """Note a problem, once."""
        if text not in self.problems:
            self.problems.append(text)

    @property
    def damaged(self) -> bool:
        """Whether the copy lacks something that it should have: the source lacked it, too, or a disk failed."""
        return bool(self.problems) or any(report.damaged for report in self.reports)
