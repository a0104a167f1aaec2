"""docs/metrics.md agrees with what the broker exports."""

from tests.packaging.metrics_page import BEGIN, END, PAGE, with_table


def test_the_table_is_that_of_the_code() -> None:
    page = PAGE.read_text()
    assert page.count(BEGIN) == page.count(END) == 1
    assert page == with_table(page), "the metrics have changed: run `make docs`"
