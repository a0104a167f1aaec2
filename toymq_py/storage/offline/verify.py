"""Checks every byte of a data directory, offline. Changes nothing.

Contract: storage.md ("`toymq verify DIR` checks every byte offline"). The same scan as recovery, reported instead of mended.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from toymq_py.consumer_snapshot import ConsumerSnapshot
from toymq_py.disk_errors import is_lasting, unreadable_text
from toymq_py.errors import DamagedData, DataDirectoryError
from toymq_py.partitions import wholes_of, without_number
from toymq_py.records import IdRange
from toymq_py.storage import offsets, partitions_file, topic_settings
from toymq_py.storage.fs import FileSystem
from toymq_py.storage.id_ranges import above, record_range, subtract
from toymq_py.storage.offline.beside import BESIDE
from toymq_py.storage.scanner import Progress
from toymq_py.storage.segment import UNLESS_UNACKNOWLEDGED, load_sidecar, parse_segment_name
from toymq_py.storage.segment_heads import FILE_NAME as HEADS_NAME
from toymq_py.storage.segment_heads import MORE_MAY_BE_GONE, list_segment_files
from toymq_py.storage.segment_inventory import InventoryEntry, SegmentStatus, segment_inventory
from toymq_py.storage.topic_directories import no_directories, topic_names
from toymq_py.storage.workers_file import check_usable


@dataclass(frozen=True, slots=True)
class Finding:
    """One result of verification. ``damage``: something is missing; otherwise it is a note, such as a torn tail that was never
    acknowledged."""

    path: str
    text: str
    damage: bool = True


@dataclass(slots=True)
class TopicReport:
    """Result of verification for one topic."""

    topic: str
    segments: int = 0
    records: int = 0
    bytes: int = 0
    first_id: int | None = None
    next_id: int | None = None
    lost: int = 0
    """The number of ids from ``first_id`` on that no record stands for, and that retention did not remove, as in DESCRIBE."""
    unreadable: int = 0
    """The number of ids that the disk refuses to give."""
    findings: list[Finding] = field(default_factory=list)
    lost_is_least: bool = False
    """Whether records are gone from the end of the log, and nothing says how many: ``lost`` are those that are known."""

    @property
    def damaged(self) -> bool:
        return any(finding.damage for finding in self.findings)


def check_data_directory(fs: FileSystem, data_dir: str) -> None:
    """Raise DataDirectoryError unless the directory has a topics directory."""
    if not fs.is_dir(data_dir):
        raise DataDirectoryError(f"there is no directory {data_dir}: check the path")
    check_usable(fs, data_dir)
    if not fs.is_dir(f"{data_dir}/topics"):
        raise DataDirectoryError(f"{data_dir} is not a data directory: it has no topics directory")


def log_bytes(fs: FileSystem, data_dir: str) -> int:
    """Bytes that ``verify`` will read, for a progress bar. Raises: OSError."""
    total = 0
    for topic in topic_names(fs, data_dir):
        path = f"{data_dir}/topics/{topic}"
        try:
            total += sum(fs.file_size(f"{path}/{name}") for name in fs.listdir(path) if parse_segment_name(name) is not None)
        except OSError as error:  # a broker that runs removes segments and topics; what cannot be read is for others to tell
            if not is_lasting(error):
                raise
    return total


def verify(fs: FileSystem, data_dir: str, progress: Progress | None = None) -> Iterator[TopicReport]:
    """Yields: a report for each topic, and one for each file beside the topics that is damaged or lacks topics. An unreadable
    file is damage of its topic. Raises: OSError for a temporary shortage, or when the topics cannot be listed."""
    for topic in topic_names(fs, data_dir):
        path = f"{data_dir}/topics/{topic}"
        try:
            yield verify_topic(fs, path, topic, progress)
        except OSError as error:
            if not is_lasting(error):
                raise
            yield TopicReport(topic, findings=[Finding(str(error.filename or path), unreadable_text(error))])
    for topic, text in no_directories(fs, data_dir):
        yield TopicReport(topic, findings=[Finding(f"{data_dir}/topics/{topic}", text)])
    for file in BESIDE:
        if (problem := file.problem(fs, data_dir)) is not None:
            finding = Finding(f"{data_dir}/{file.name}", f"{problem}; {file.when_damaged}")
            yield TopicReport(file.name, findings=[finding])
    if lost := lost_topics(fs, data_dir):
        path = f"{data_dir}/{partitions_file.FILE_NAME}"
        yield TopicReport(partitions_file.FILE_NAME, findings=[Finding(path, text) for text in lost])


def lost_topics(fs: FileSystem, data_dir: str) -> list[str]:
    """A report for each partitioned topic that is missing in the table although its partitions exist; none while the table
    itself is damaged. Raises: OSError."""
    try:
        known = partitions_file.load(fs, data_dir)
    except DamagedData:
        return []
    return [without_number(*found) for found in sorted(wholes_of(topic_names(fs, data_dir)).items()) if found[0] not in known]


def verify_topic(fs: FileSystem, path: str, topic: str, progress: Progress | None = None) -> TopicReport:
    """Check segments, sidecars, offsets and settings of one topic. Raises: OSError when its directory cannot be read."""
    report = TopicReport(topic)
    files = list_segment_files(fs, path)
    loaded = offsets.load(fs, path)  # after the files: retention tells the offsets before it removes
    files = replace(files, first_id_known=loaded.first_id_known)
    report.findings += [Finding(f"{path}/{base_id:020d}.log", reason) for base_id, reason in files.foreign.items()]
    if files.evicted.problem is not None:
        report.findings.append(Finding(path, f"what is in the bucket is not known: {files.evicted.problem}"))
    if files.problem is not None:
        report.findings.append(Finding(path, files.problem))
    state = _check_offsets(fs, path, loaded, report)
    state = replace(state, removed=(*state.removed, *files.removed))
    if files.foreign or (files.bases and files.begin(state.first_id) < files.bases[0]):
        report.first_id = report.next_id = files.begin(state.first_id)
    gaps: list[IdRange] = []
    end_unknown = False
    for each in segment_inventory(fs, path, files, state.first_id, state.next_id, sidecars=False, progress=progress):
        if each.missing is not None:
            for first, last in subtract([each.missing], state.removed):
                report.findings.append(Finding(each.segment.path, record_range(first, last, "before it are missing")))
            gaps.append(each.missing)
        _check_segment(fs, each, report, gaps, state.next_id)
        end_unknown = each.following is None and (each.scan is None or each.scan.unreadable_tail)
    _check_settings(fs, path, report)
    end = state.first_id if report.next_id is None else report.next_id
    next_id = files.end(max(state.next_id, end))
    if next_id > end and end_unknown:
        report.unreadable += next_id - end
    elif next_id > end:
        where = "there is no log" if report.next_id is None else f"the log ends at {end - 1}"
        known = "a segment of another log takes the place"
        if next_id in (state.next_id, max(files.heads, default=-1) + 1):
            known = "the offsets know" if state.next_id == next_id else f"{HEADS_NAME} knows"
        report.findings.append(Finding(path, f"{known} of ids up to {next_id - 1}, {where}; {MORE_MAY_BE_GONE}"))
        gaps.append((end, next_id - 1))
        report.next_id, report.lost_is_least = next_id, True
        if report.first_id is None:  # no file is there, and the log begins as DESCRIBE says
            report.first_id = files.begin(state.first_id)
    gaps = sorted(above(gaps, files.begin(state.first_id)))
    report.lost += sum(last - first + 1 for first, last in subtract(gaps, state.removed))
    return report


def _check_segment(
    fs: FileSystem, each: InventoryEntry, report: TopicReport, gaps: list[IdRange], stored_id: int
) -> None:
    """Check a segment. ``stored_id``: all lower ids were stored, as the offsets say."""
    segment, result = each.segment, each.scan
    name = segment.path
    report.segments += 1
    report.bytes += segment.end if result is None else result.size
    if each.status in (SegmentStatus.BELOW, SegmentStatus.COPY):
        report.findings.append(Finding(name, f"is {each.status.value}", damage=each.status is SegmentStatus.COPY))
        return
    if each.error is not None:
        text = f"cannot be opened, and of its records nothing can be told: {each.error.strerror}"
        report.findings.append(Finding(name, text))
    if segment.start:
        report.findings.append(Finding(name, each.twice_text))
    report.records += segment.next_id - segment.base_id - segment.lost
    report.first_id = segment.base_id if report.first_id is None else report.first_id
    report.next_id = segment.next_id
    gaps += segment.ids_of_damage(unreadable=False)
    report.unreadable += sum(last - first + 1 for first, last in segment.ids_of_damage(unreadable=True))
    for damage in segment.damages if result is not None else ():
        text = f"damage from byte {damage.position} to {damage.resume}: {damage.outcome}"
        text += UNLESS_UNACKNOWLEDGED if each.following is None and damage.is_open(stored_id) else ""
        report.findings.append(Finding(name, text))
    if result is not None and result.unreadable_tail:
        report.findings.append(Finding(name, f"what is behind record {segment.next_id - 1} cannot be read"))
    if result is not None and result.torn_bytes:
        where = f"{result.torn_bytes} bytes behind record {segment.next_id - 1} (byte {segment.end})"
        text = f"torn tail: {where} hold no valid record; never acknowledged, or damaged"
        if each.following is not None:  # all of its records are there
            text = f"{where} hold no valid record, and none is missing"
        report.findings.append(Finding(name, text, damage=False))
    if result is not None and each.following is not None and segment.start == 0 and fs.exists(segment.sidecar_path):
        known = load_sidecar(fs, name, segment.base_id, each.following)
        if known is None or known.damages != segment.damages:
            text = "does not fit its segment; it is a cache and will be made anew"
            report.findings.append(Finding(segment.sidecar_path, text, damage=False))


def _check_offsets(
    fs: FileSystem, path: str, loaded: offsets.LoadedOffsets, report: TopicReport
) -> offsets.OffsetsState:
    if loaded.problem is not None:
        report.findings.append(Finding(path, f"{loaded.problem}; used is {loaded.source.value}"))
    for name, raw in loaded.state.consumers.items():
        try:
            ConsumerSnapshot.from_json(raw)
        except DamagedData as error:
            report.findings.append(Finding(path, f"consumer {name} of the offsets: {error}"))
    return loaded.state


def _check_settings(fs: FileSystem, path: str, report: TopicReport) -> None:
    try:
        topic_settings.read(fs, path)
    except DamagedData as error:
        report.findings.append(Finding(f"{path}/{topic_settings.FILE_NAME}", str(error)))
