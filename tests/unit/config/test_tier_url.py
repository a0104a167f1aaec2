"""URLs of buckets."""

import pytest

from toymq_py.config.tier_url import parse_tier
from toymq_py.errors import ConfigError


def test_urls_of_buckets() -> None:
    for url in ("file:///mnt/history", "s3://bucket", "s3://bucket/prefix/a", "gs://b/p", "az://container/p"):
        assert parse_tier(url) == url
    for url, said in (
        ("/mnt/history", "a tier is one of file://, s3://, gs://, az://"),
        ("http://host/bucket", "a tier is one of"),
        ("file://mnt/history", "write file:///path/of/a/directory"),
        ("file:///", "write file:///path/of/a/directory"),
        ("s3:///prefix", "write s3://bucket/prefix, or file:///path/of/a/directory"),
        ("s3:/x", "write s3://bucket/prefix, or file:///path/of/a/directory"),
    ):
        with pytest.raises(ConfigError, match=said):
            parse_tier(url)
