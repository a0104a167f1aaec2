"""Check every byte of a data directory, offline. Changes nothing.

Contract: storage.md ("`toymq verify DIR` checks every byte offline"). The same scan as recovery, reported instead of mended.
"""

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field

from toymq_py.errors import DamagedData
from toymq_py.model import is_topic_name
from toymq_py.storage import offsets, settings
from toymq_py.storage.fs import FileSystem
from toymq_py.storage.identity import survey
from toymq_py.storage.offsets import AckedView
from toymq_py.storage.segment import load_sidecar, parse_segment_name, scan_segment


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing worth saying. ``damage``: something that should be there is not; otherwise it is a note, such as a torn
    tail that was never acknowledged."""

    path: str
    text: str
    damage: bool = True


@dataclass(slots=True)
class TopicReport:
    """What verification found in one topic."""

    topic: str
    segments: int = 0
    records: int = 0
    bytes: int = 0
    first_id: int | None = None
    next_id: int | None = None
    lost: int = 0
    findings: list[Finding] = field(default_factory=list)

    @property
    def damaged(self) -> bool:
        return any(finding.damage for finding in self.findings)


def topic_names(fs: FileSystem, data_dir: str) -> list[str]:
    """Topics of a data directory: what the broker would open. Raises: OSError."""
    root = f"{data_dir}/topics"
    if not fs.is_dir(root):
        return []
    return [name for name in fs.listdir(root) if is_topic_name(name) and fs.is_dir(f"{root}/{name}")]


def log_bytes(fs: FileSystem, data_dir: str) -> int:
    """Bytes that ``verify`` will read, for a progress bar. Raises: OSError."""
    total = 0
    for topic in topic_names(fs, data_dir):
        path = f"{data_dir}/topics/{topic}"
        with suppress(FileNotFoundError):  # a broker that runs removes segments and topics
            total += sum(fs.file_size(f"{path}/{name}") for name in fs.listdir(path) if parse_segment_name(name) is not None)
    return total


def verify(
    fs: FileSystem, data_dir: str, progress: Callable[[int], None] | None = None
) -> Iterator[TopicReport]:
    """Reports, a topic at a time. Raises: OSError when a file cannot be read at all."""
    for topic in topic_names(fs, data_dir):
        yield verify_topic(fs, f"{data_dir}/topics/{topic}", topic, progress)


def verify_topic(
    fs: FileSystem, path: str, topic: str, progress: Callable[[int], None] | None = None
) -> TopicReport:
    """One topic's report: segments, sidecars, offsets, settings. Raises: OSError."""
    report = TopicReport(topic)
    files = survey(fs, path)
    names = files.bases
    report.findings += [Finding(f"{path}/{base_id:020d}.log", reason) for base_id, reason in files.foreign.items()]
    if files.problem is not None:
        report.findings.append(Finding(path, files.problem))
    state = _check_offsets(fs, path, report)
    if files.foreign:  # before the first segment, records may be missing only where another log's file is
        report.first_id = report.next_id = files.begin(state.first_id)
    for at, base_id in enumerate(names):
        following = names[at + 1] if at + 1 < len(names) else None
        if following is not None and following <= state.first_id:
            report.findings.append(Finding(f"{path}/{base_id:020d}.log", "is below first_id and will go", damage=False))
            continue
        _check_segment(fs, path, base_id, following, report, progress, state)
    _check_settings(fs, path, report)
    end = state.first_id if report.next_id is None else report.next_id
    next_id = files.end(max(state.next_id, end))
    if next_id > end:
        report.lost += next_id - end
        where = "there is no log" if report.next_id is None else f"the log ends at {end - 1}"
        known = "the offsets know" if state.next_id == next_id else "a segment of another log takes the place"
        report.findings.append(Finding(path, f"{known} of ids up to {next_id - 1}, {where}"))
    return report


def _check_segment(
    fs: FileSystem,
    path: str,
    base_id: int,
    following: int | None,
    report: TopicReport,
    progress: Callable[[int], None] | None,
    state: offsets.OffsetsState,
) -> None:
    name = f"{path}/{base_id:020d}.log"
    if report.next_id is not None and base_id > report.next_id:
        for first, last in offsets.lost_of((report.next_id, base_id - 1), state.removed):
            report.lost += last - first + 1
            report.findings.append(Finding(name, f"records {first} to {last} before it are missing"))
    result = scan_segment(fs, name, base_id, progress=progress)
    segment = result.segment
    report.segments += 1
    report.records += segment.next_id - base_id - segment.lost
    report.lost += segment.lost
    report.bytes += result.size
    report.first_id = base_id if report.first_id is None else report.first_id
    report.next_id = segment.next_id
    for damage in segment.damages:
        report.findings.append(
            Finding(
                name,
                f"damage from byte {damage.position} to {damage.resume}: "
                f"records {damage.first_id} to {damage.last_id} are lost",
            )
        )
    if result.torn_bytes:
        where = f"{result.torn_bytes} bytes behind record {segment.next_id - 1} (byte {segment.end})"
        if following is None:
            report.findings.append(
                Finding(name, f"torn tail: {where} hold no valid record; never acknowledged, or damaged", damage=False)
            )
        else:
            report.findings.append(Finding(name, f"{where} hold no valid record"))
    if following is not None:
        if segment.next_id > following:
            report.findings.append(Finding(name, f"holds ids of the segment behind it, up to {segment.next_id - 1}"))
        sidecar = name[:-4] + ".idx"
        if fs.exists(sidecar) and load_sidecar(fs, name, base_id, following) is None:
            text = "does not fit its segment; it is a cache and will be made anew"
            report.findings.append(Finding(sidecar, text, damage=False))


def _check_offsets(fs: FileSystem, path: str, report: TopicReport) -> offsets.OffsetsState:
    loaded = offsets.load(fs, path)
    if loaded.problem is not None:
        # One that is missing may be a power cut, where the file system lost the name of the temp file and kept a later rename.
        damage = loaded.source is not offsets.Source.PREVIOUS or fs.exists(f"{path}/{offsets.FILE_NAME}")
        report.findings.append(Finding(path, f"{loaded.problem}; used is {loaded.source.value}", damage=damage))
    for name, raw in loaded.state.consumers.items():
        try:
            AckedView.of(raw)
        except DamagedData as error:
            report.findings.append(Finding(path, f"consumer {name} of the offsets: {error}"))
    return loaded.state


def _check_settings(fs: FileSystem, path: str, report: TopicReport) -> None:
    file = f"{path}/{settings.FILE_NAME}"
    if not fs.exists(file):
        return
    try:
        settings.parse(fs.read_file(file))
    except DamagedData as error:
        report.findings.append(Finding(file, str(error)))
