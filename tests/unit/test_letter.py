"""Headers and keys of dead letters, and of redriven messages."""

from hypothesis import given
from hypothesis import strategies as st

from toymq_py import letter
from toymq_py.failure import Failure
from toymq_py.records import Records

names = st.text("abcxyz-", min_size=1, max_size=8).filter(lambda name: not name.startswith("toymq-"))
values = st.text("abc :%", max_size=8).map(str.strip)


def records(key: bytes, headers: bytes) -> Records:
    return Records([7], [99], [key], [b"payload"], [headers])


@given(st.dictionaries(names, values, max_size=4), st.sampled_from(sorted(letter.RESERVED)), values)
def test_a_header_block_is_split_into_the_clients_and_the_reserved(own: dict[str, str], name: bytes, value: str) -> None:
    clients = letter.header_block([(key.encode(), text.encode()) for key, text in own.items()])
    both = clients + letter.header_block([(name, value.encode())])
    assert letter.split_headers(both) == (clients, {name: value.encode()})
    assert letter.split_headers(both.removesuffix(b"\n")) == (clients, {name: value.encode()})


def test_reserved_headers_of_a_publisher_do_not_get_into_a_letter() -> None:
    block = letter.message_headers("t", b"k", b"a: 1\ntoymq-origin-id: 5\ntoymq-redrives: 9\n", 7)
    assert letter.split_headers(block) == (b"a: 1\n", {letter.ORIGIN_KEY: b"k", letter.ORIGIN_ID: b"7"})


def test_a_message_that_came_back_keeps_its_first_key_and_its_count() -> None:
    block = letter.message_headers("t", b"redrive:t.dlq:1:2", b"toymq-origin-key: k\ntoymq-redrives: 2\n", 7)
    _, reserved = letter.split_headers(block)
    assert reserved == {letter.ORIGIN_KEY: b"k", letter.REDRIVES: b"2", letter.ORIGIN_ID: b"7"}


def test_the_last_failure_is_told_line_breaks_and_all() -> None:
    block = letter.failure_headers("max_attempts", (Failure(error_type="ValueError", traceback="a\nb: c"), 5))
    _, reserved = letter.split_headers(block)
    assert reserved == {
        letter.REASON: b"max_attempts", letter.ERROR_TYPE: b"ValueError", letter.TRACEBACK: b'"a\\nb: c"',
        letter.FAILED_AT: b"5",
    }  # fmt: skip


def test_a_return_is_the_same_at_every_try_and_counts_up() -> None:
    headers = b"a: 1\ntoymq-consumer: c\ntoymq-origin-key: k\ntoymq-redrives: 2\n"
    back = letter.return_of("t.dlq", records(b"dlq:t:c:1:2:3", headers), 0)
    assert back == letter.return_of("t.dlq", records(b"dlq:t:c:1:2:3", headers), 0)
    assert back.key == b"redrive:t.dlq:7:99"
    assert back.consumer == b"c"
    assert letter.split_headers(back.headers) == (
        b"a: 1\n", {letter.ORIGIN_KEY: b"k", letter.REDRIVES: b"3", letter.REDRIVE_CONSUMER: b"c"},
    )  # fmt: skip


def test_a_returned_message_is_for_the_consumer_that_failed_it_and_its_copy_in_another_topic_for_all() -> None:
    """Found: when a worker forwarded a redriven message with its key and headers, all consumers of the next topic skipped it,
    except one of the same name."""
    back = letter.return_of("t.dlq", records(b"", b"toymq-consumer: c\n"), 0)
    run = records(back.key, back.headers)
    assert [letter.rows_for("t", run, 0, 1, name) for name in (b"c", b"other")] == [(0, 1), (1, 1)]
    assert [letter.rows_for("next", run, 0, 1, name) for name in (b"c", b"other")] == [(0, 1), (0, 1)]
    forwarded = letter.message_headers("next", back.key, back.headers, 7)
    assert letter.split_headers(forwarded)[1] == {letter.ORIGIN_ID: b"7", letter.ORIGIN_KEY: back.key}


def test_a_redrives_header_of_thousands_of_digits_counts_as_none() -> None:
    back = letter.return_of("t.dlq", records(b"", b"toymq-redrives: " + b"9" * 5000), 0)
    assert letter.split_headers(back.headers)[1][letter.REDRIVES] == b"1"


def test_moved_records_are_found_by_the_keys_of_their_target() -> None:
    key = letter.letter_key("t", "c", 7, 99, 5)
    back = letter.return_of("t.dlq", records(b"", b""), 0).key
    found = [(10, [b"", key, b"dlq:u:c:1:2:3", back])]
    assert letter.moved_records(found, "t.dlq") == [(11, [b"c", b"7", b"99", b"5"])]
    assert letter.moved_records(found, "t") == [(13, [b"7", b"99"])]


def test_what_a_letter_says_of_its_failed_deliveries_is_read_back() -> None:
    failure = Failure("bad sku", "ValueError", "no: such")
    block = b"a: 1\ntoymq-attempts: 4\n" + letter.failure_headers("rejected", (failure, 5))
    assert letter.failed_with(block) == (4, failure, 5)
    forged = b"toymq-attempts: %b\ntoymq-error: \xff\n" % (b"9" * 5000)
    assert letter.failed_with(forged) == (None, Failure(error="\ufffd"), None)
