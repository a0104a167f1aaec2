"""The screen of ``toymqctl top``. The only module that imports Textual.

One table shows topics, the consumers of a topic, or its dead letters. ``figures`` computes it; this module draws it and handles
keys.
"""

from typing import ClassVar

from rich.text import Text
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.coordinate import Coordinate
from textual.screen import ModalScreen
from textual.widgets import DataTable, Footer, Input, Static

from toymq_py.errors import ToymqError
from toymq_py.names import DEAD_LETTERS
from toymqctl.lines import Row
from toymqctl.tables import NARROWEST, cut
from toymqctl.top.figures import (
    CONSUMER_COLUMNS,
    LETTER_COLUMNS,
    TOPIC_COLUMNS,
    Cell,
    Column,
    Figures,
    Line,
    arranged,
    letter_lines,
)
from toymqctl.top.poller import Feed

POLL_S = 1.0
LINES_MAX = 500
"""Most rows of the table: drawing more takes longer than a poll. The filter finds the others."""
LETTERS_MAX = 100
HELP = """\
enter      into a topic: its consumers
d          the dead letters of the topic
escape     back
s          sort by the next column
r          the other way round
/          only lines with ...; escape ends it
p, space   hold the figures, go on
q          quit

backlog    messages that are due and not acked; of a topic, those of the consumer with the most
oldest     how long the oldest of them has been due
ack/s      of a topic, the sum of its consumers
letters    dead letters that wait: they did not go back, and were not discarded
loop lag   how late the broker's event loop was at worst in the last ten seconds
fsync p99  of the last 1,024 syncs, one in a hundred took longer
"""


class Help(ModalScreen[None]):
    """A page that explains keys and columns. Any key closes it."""

    DEFAULT_CSS = """
    Help { align: center middle; }
    Help > Static { width: auto; max-width: 90%; height: auto; padding: 1 2; border: round $primary; background: $surface; }
    """

    def compose(self) -> ComposeResult:
        yield Static(Text(HELP))

    def on_key(self) -> None:
        self.dismiss()

    def on_click(self) -> None:
        self.dismiss()


class Top(App[None]):
    """The screen, which polls the feed once a second. A slow answer delays the next poll, but no key."""

    ENABLE_COMMAND_PALETTE = False
    CSS = """
    #overview { height: 2; padding: 0 1; }
    #where { height: 1; padding: 0 1; background: $panel; }
    #filter { display: none; height: 1; border: none; padding: 0 1; }
    DataTable { height: 1fr; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("q", "quit", "quit"),
        Binding("escape", "up", "back"),
        Binding("d", "letters", "dead letters"),
        Binding("s", "sort", "sort"),
        Binding("r", "reverse", "reverse"),
        Binding("slash", "filter", "filter", key_display="/"),
        Binding("p,space", "hold", "pause", key_display="p"),
        Binding("question_mark", "help", "help", key_display="?"),
    ]

    def __init__(self, feed: Feed, *, every_s: float | None = POLL_S) -> None:
        """``every_s``: None: poll only when ``poll`` is called, for tests."""
        super().__init__()
        self._feed = feed
        self._every_s = every_s
        self._figures: Figures | None = None
        self._problem: str | None = None
        self._polling = False
        self._held = False
        self._topic: str | None = None
        self._in_letters = False
        self._letters: list[Row] = []
        self._letters_of: tuple[str, int] | None = None
        self._sorted_by = {TOPIC_COLUMNS: (0, False), CONSUMER_COLUMNS: (0, False), LETTER_COLUMNS: (0, True)}
        self._wanted = ""
        self._shown: tuple[tuple[str, ...], list[Line]] = ((), [])
        self._came_from: str | None = None

    def compose(self) -> ComposeResult:
        with Vertical():
            yield Static(id="overview")
            yield Static(id="where")
            yield Input(placeholder="only lines with ...", id="filter", compact=True)
            yield DataTable(cursor_type="row", zebra_stripes=True)
        yield Footer()

    async def on_mount(self) -> None:
        self._table.focus()
        if self._every_s is not None:
            self.set_interval(self._every_s, self._ask)
            self._ask()

    @property
    def _table(self) -> "DataTable[Text]":
        return self.query_one(DataTable)

    # -- asking

    def _ask(self) -> None:
        if self._held or self._polling:
            self._show_where()  # the connection may have changed
        else:
            self.run_worker(self.poll(), group="poll")

    async def poll(self) -> None:
        """Poll once and show the result; an error is shown, too."""
        if self._polling:
            return
        self._polling = True
        try:
            stats = await self._feed.stats()
            self._figures = Figures(stats, self._figures.stats if self._figures is not None else None)
            await self._fetch_letters()
            self._problem = None
        except (ToymqError, OSError) as error:
            self._problem = str(error)
        finally:
            self._polling = False
        if not self._held:
            self._show()

    async def _fetch_letters(self) -> None:
        """Fetch the dead letters again when the broker has other ones than the screen shows."""
        if self._topic is None or not self._in_letters or self._figures is None:
            return
        name = self._topic + DEAD_LETTERS
        present = name, self._figures.newest_id(name)
        if present != self._letters_of:
            self._letters = await self._feed.newest(name, LETTERS_MAX) if self._figures.has(name) else []
            self._letters_of = present

    # -- showing

    def _columns(self) -> tuple[Column, ...]:
        if self._topic is None:
            return TOPIC_COLUMNS
        return LETTER_COLUMNS if self._in_letters else CONSUMER_COLUMNS

    def _lines(self) -> list[Line]:
        assert self._figures is not None
        if self._topic is None:
            return self._figures.topics()
        return letter_lines(self._letters) if self._in_letters else self._figures.consumers(self._topic)

    def _show(self) -> None:
        if self._figures is None:
            self._show_where()
            return
        self.query_one("#overview", Static).update(Text("\n").join(map(_joined, self._figures.overview())))
        columns = self._columns()
        column, reverse = self._sorted_by[columns]
        lines = arranged(self._lines(), self._wanted, column, reverse=reverse)
        self._show_where(len(lines))
        mark = "▼" if reverse else "▲"
        names = tuple(
            each.name + (f" {mark}" if at == column else "") for at, each in enumerate(columns)
        )
        self._fill(columns, names, lines[:LINES_MAX])

    def _fill(self, columns: tuple[Column, ...], names: tuple[str, ...], lines: list[Line]) -> None:
        """Update the table: the cursor stays on its line, and unchanged cells are not drawn."""
        table = self._table
        shown_names, shown = self._shown
        same_rows = names == shown_names and [line.key for line in lines] == [line.key for line in shown]
        self._shown = names, lines
        if same_rows:
            for row, (line, before) in enumerate(zip(lines, shown, strict=True)):
                for at, (cell, old) in enumerate(zip(line.cells, before.cells, strict=True)):
                    if cell != old:
                        table.update_cell_at(Coordinate(row, at), self._text(cell, columns[at]), update_width=True)
            return
        key = self._came_from or (shown[table.cursor_row].key if table.cursor_row < len(shown) else None)
        self._came_from = None
        x, y = table.scroll_offset
        if names == shown_names:
            table.clear()
        else:
            table.clear(columns=True)
            for name, column in zip(names, columns, strict=True):
                table.add_column(Text(name, justify="right" if column.number else "left"))
        for line in lines:
            table.add_row(*map(self._text, line.cells, columns), key=line.key)
        at = next((row for row, line in enumerate(lines) if line.key == key), 0)
        table.move_cursor(row=at, scroll=False)
        table.scroll_to(x, y, animate=False, force=True)

    def _text(self, cell: Cell, column: Column) -> Text:
        """Format a cell. Long names and reasons are cut to leave room for numbers; the filter and the heading use them
        whole."""
        most = max(self.size.width // 3, NARROWEST)
        text = Text(cell.text if column.number else cut(cell.text, most), "bold red" if cell.bad else "", no_wrap=True)
        text.justify = "right" if column.number else "left"
        if not column.number:
            text.truncate(most, overflow="ellipsis")  # characters of two columns
        return text

    def _show_where(self, found: int | None = None) -> None:
        parts = [Text(self._feed.address, "bold")]
        if self._topic is not None:
            parts.append(Text(self._topic))
            figures = self._figures
            is_there = figures is not None and figures.has(self._topic)
            alone = figures is not None and is_there and not figures.consumers(self._topic)
            parts.append(Text("dead letters" if self._in_letters else "no consumers" if alone else "consumers"))
            if figures is not None and not is_there:
                why = "this topic is away, or was deleted" if figures.away else "this topic was deleted"
                parts.append(Text(why, "bold red"))
        if self._wanted:
            parts.append(Text(f"/{self._wanted}"))
        if found is not None and found > LINES_MAX:
            parts.append(Text(f"the first {LINES_MAX} of {found}"))
        if self._figures is not None:
            parts.append(Text(self._figures.time))
        if self._figures is not None and (away := self._figures.away):
            parts.append(Text(f"without {', '.join(away)}: `toymqctl doctor` says what to do", "bold red"))
        if self._held:
            parts.append(Text("PAUSED", "bold yellow"))
        if self._feed.trouble is not None:
            parts.append(Text(f"no connection, trying again: {self._feed.trouble}", "bold red"))
        elif self._problem is not None:
            parts.append(Text(self._problem, "bold red"))
        self.query_one("#where", Static).update(Text(" · ").join(parts))

    # -- keys

    def _go(self, topic: str | None, *, letters: bool = False) -> None:
        """Show another table. On the way back the cursor returns to its line."""
        self._came_from = self._topic if topic is None else None
        self._topic, self._in_letters = topic, letters
        self._letters, self._letters_of, self._problem = [], None, None
        self._set_filter("")
        self._show()
        if letters:
            self.run_worker(self.poll(), group="poll")

    def on_data_table_row_selected(self, event: DataTable.RowSelected) -> None:
        if self._topic is None and event.row_key.value is not None:
            self._go(event.row_key.value)

    def action_letters(self) -> None:
        lines = self._shown[1]
        if self._topic is None and self._table.cursor_row < len(lines):
            self._go(lines[self._table.cursor_row].key.removesuffix(DEAD_LETTERS), letters=True)
        elif self._topic is not None and not self._in_letters:
            self._go(self._topic.removesuffix(DEAD_LETTERS), letters=True)

    def action_up(self) -> None:
        field = self.query_one("#filter", Input)
        if field.has_focus or self._wanted:
            self._set_filter("")
            self._show()
        elif self._in_letters:
            self._go(self._topic)
        elif self._topic is not None:
            self._go(None)

    def action_sort(self) -> None:
        columns = self._columns()
        column = (self._sorted_by[columns][0] + 1) % len(columns)
        self._sorted_by[columns] = column, columns[column].number
        self._show()

    def action_reverse(self) -> None:
        columns = self._columns()
        column, reverse = self._sorted_by[columns]
        self._sorted_by[columns] = column, not reverse
        self._show()

    def action_filter(self) -> None:
        field = self.query_one("#filter", Input)
        field.display = True
        field.focus()

    def _set_filter(self, wanted: str) -> None:
        field = self.query_one("#filter", Input)
        field.value = self._wanted = wanted
        field.display = bool(wanted)
        self._table.focus()

    def on_input_changed(self, event: Input.Changed) -> None:
        self._wanted = event.value
        self._show()

    def on_input_submitted(self) -> None:
        self._set_filter(self._wanted)

    def action_hold(self) -> None:
        self._held = not self._held
        self._show_where()
        if not self._held:
            self.run_worker(self.poll(), group="poll")

    def action_help(self) -> None:
        self.push_screen(Help())


def _joined(cells: list[Cell]) -> Text:
    return Text("   ").join(Text(cell.text, "bold red" if cell.bad else "") for cell in cells)
