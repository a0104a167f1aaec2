"""The table of docs/configuration.md, made from the schema: ``python -m tests.packaging.configuration_page`` writes it."""

from pathlib import Path

from toymq_py.cli.options import OPTIONS
from toymq_py.config.option_schema import Option

PAGE = Path(__file__).parents[2] / "docs" / "configuration.md"
BEGIN = "<!-- made from toymq_py/config/options.py by `make docs` -->\n"
END = "<!-- end -->\n"


def table() -> str:
    rows = [("command line", "file", "values", "default", "")] + [_row(each) for each in OPTIONS]
    lines = ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join([lines[0], "|---" * len(rows[0]) + "|", *lines[1:]]) + "\n"


def _row(each: Option) -> tuple[str, ...]:
    default = "not set" if each.default in (None, ()) else f"`{each.show(each.default)}`"
    values = each.kind.limits() or each.kind.noun
    return f"`{each.flag}`", f"`{each.name}`", values.replace("|", r"\|"), default, each.help.replace("|", r"\|")


def with_table(page: str) -> str:
    """Return the page with a new table."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{table()}\n{END}{after}"


if __name__ == "__main__":
    PAGE.write_text(with_table(PAGE.read_text()))
