"""The report of a backup."""

from toymq_py.storage.offline.backup_report import BackupReport
from toymq_py.storage.offline.verify import Finding, TopicReport


def test_a_problem_is_said_once_and_makes_the_backup_a_damaged_one() -> None:
    report = BackupReport(gone=["b"], superseded=[("a", "/backup/earlier/20231114T221320Z")])
    assert not report.damaged, "what is gone, or was made anew, may be so on purpose"
    report.problem("a file is gone")
    report.problem("a file is gone")
    assert (report.problems, report.damaged) == (["a file is gone"], True)


def test_damage_of_the_copy_makes_the_backup_a_damaged_one() -> None:
    note = TopicReport("a", findings=[Finding("/backup", "a torn tail", damage=False)])
    assert not BackupReport(reports=[note]).damaged
    assert BackupReport(reports=[note, TopicReport("b", findings=[Finding("/backup", "a hole")])]).damaged
