"""The URL of a bucket: ``--tier``, ``toymq restore``, ``toymq tier check``."""

from urllib.parse import urlsplit

from toymq_py.errors import ConfigError

SCHEMES = ("file", "s3", "gs", "az")


def parse_tier(url: str) -> str:
    """Check the URL of a bucket. Raises: ConfigError."""
    parts = urlsplit(url)
    if parts.scheme not in SCHEMES:
        raise ConfigError(f"invalid URL {url!r}: a tier is one of {', '.join(f'{scheme}://' for scheme in SCHEMES)}")
    if parts.scheme == "file" and (parts.netloc or not parts.path.strip("/")):
        raise ConfigError(f"invalid URL {url!r}: write file:///path/of/a/directory, or s3://bucket/prefix")
    if parts.scheme != "file" and not parts.netloc:
        raise ConfigError(f"invalid URL {url!r}: write {parts.scheme}://bucket/prefix, or file:///path/of/a/directory")
    return url
