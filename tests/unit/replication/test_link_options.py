"""Link options are logged without the token; the error for a different token names where it is set."""

from toymq_py.replication.link_options import LinkOptions, secret_refusal


def test_the_token_is_not_shown() -> None:
    assert "secret" not in repr(LinkOptions(token="secret"))


def test_another_secret_is_refused_with_the_option_that_sets_it() -> None:
    remedy = "give all nodes of all groups the same word in --replicate-token-file"
    assert secret_refusal("other", "secret") == f"the secret that was shown is another one: {remedy}"
    assert secret_refusal(None, "secret") == f"no secret was shown: {remedy}"
    for shown in ("secret", None):
        assert secret_refusal(shown, None) is None
    assert secret_refusal("secret", "secret") is None
