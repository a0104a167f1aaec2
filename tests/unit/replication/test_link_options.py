"""Options are logged; a token is not."""

from toymq_py.replication.link_options import LinkOptions


def test_the_token_is_not_shown() -> None:
    assert "secret" not in repr(LinkOptions(token="secret"))
