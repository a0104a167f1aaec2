"""The files that the options of ``serve`` name: read at the start and at SIGHUP, and checked by ``toymq config check``.

Contract: reliability.md, "Security"; ADR 0280. Serves nothing.
"""

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from toymq_py.auth.tokens import Authority, read_grants
from toymq_py.config.definitions import Definitions, parse
from toymq_py.config.option_schema import is_path, options_of
from toymq_py.config.options import ServeOptions
from toymq_py.errors import ConfigError
from toymq_py.file_access import check_access
from toymq_py.net.certificates import Certificates, PeerCertificates
from toymq_py.text_files import read_text

logger = logging.getLogger("toymq_py.daemon")

NAMED = {each.attribute: each.flag for each in options_of(ServeOptions) if is_path(each) and each.attribute != "data_dir"}
"""The options that name a file, by attribute."""
SECRET = frozenset(("auth_file", "tls_key", "etcd_key", "replicate_key", "replicate_token_file"))
"""Those that other users should not read."""
CERTIFICATES = ("tls_cert", "tls_key", "tls_client_ca")
REPLICA_CERTIFICATES = ("replicate_cert", "replicate_key", "replicate_ca")


@dataclass(frozen=True, slots=True)
class Files:
    """The contents of the files that the options name."""

    definitions: Definitions
    authority: Authority | None
    certificates: Certificates | None
    replica_certificates: PeerCertificates | None
    nodes_secret: str | None

    def reloads(self, options: ServeOptions) -> dict[str, Callable[[], None]]:
        """The functions that read files again at SIGHUP, by the files' names in the log."""
        found: dict[str, Callable[[], None]] = {}
        if (authority := self.authority) is not None and (auth_file := options.auth_file) is not None:
            found["tokens"] = _checked(options, ("auth_file",), lambda: authority.replace(read_grants(auth_file)))
        if self.certificates is not None:
            found["certificates"] = _checked(options, CERTIFICATES, self.certificates.reload)
        if self.replica_certificates is not None:
            found["certificates of replicas"] = _checked(options, REPLICA_CERTIFICATES, self.replica_certificates.reload)
        return found


def _checked(options: ServeOptions, attributes: Iterable[str], read: Callable[[], None]) -> Callable[[], None]:
    """``read``, behind a check of the files' permissions. A pipe is refused: to open it waits for a writer, on the loop."""

    def again() -> None:
        for attribute in attributes:
            if (path := getattr(options, attribute)) is not None and Path(path).is_fifo():
                raise ConfigError(f"{NAMED[attribute]}: {path} is a pipe, which is read at the start alone: name a file")
        _check(options, attributes)
        read()

    return again


def _check(options: ServeOptions, attributes: Iterable[str]) -> None:
    """Check the permissions of files, and log the warnings. Raises: ConfigError."""
    for attribute in attributes:
        if (doubt := _doubt(options, attribute)) is not None:
            logger.warning("%s", doubt)


def _doubt(options: ServeOptions, attribute: str) -> str | None:
    """A warning of ``check_access``. Raises: ConfigError."""
    path: str | None = getattr(options, attribute)
    return None if path is None else check_access(path, NAMED[attribute], secret=attribute in SECRET)


def read_files(options: ServeOptions) -> Files:
    """Read the files that the options name. Blocks. Raises: ConfigError."""
    _check(options, NAMED)
    definitions, authority = _read_definitions(options), _read_authority(options)
    certificates, replica_certificates = _read_certificates(options), _read_replica_certificates(options)
    return Files(definitions, authority, certificates, replica_certificates, _read_nodes_secret(options))


def check_files(options: ServeOptions) -> tuple[list[str], list[str]]:
    """Check the files that the options name. Blocks. Returns: a line for each error, and for each warning."""
    problems, doubts = [], []
    for attribute in NAMED:
        try:
            doubts.append(_doubt(options, attribute))
        except ConfigError as error:
            problems.append(str(error))
    for read in (_read_definitions, _read_authority, _read_certificates, _read_replica_certificates, _read_nodes_secret):
        try:
            read(options)
        except ConfigError as error:
            problems.append(str(error))
    return problems, [each for each in doubts if each is not None]


def _read_authority(options: ServeOptions) -> Authority | None:
    return None if options.auth_file is None else Authority(read_grants(options.auth_file))


def _read_certificates(options: ServeOptions) -> Certificates | None:
    if options.tls_cert is None or options.tls_key is None:
        return None
    return Certificates(options.tls_cert, options.tls_key, options.tls_client_ca)


def _read_replica_certificates(options: ServeOptions) -> PeerCertificates | None:
    if options.replicate_cert is None or options.replicate_key is None or options.replicate_ca is None:
        return None
    return PeerCertificates(options.replicate_cert, options.replicate_key, options.replicate_ca)


def _read_nodes_secret(options: ServeOptions) -> str | None:
    if (path := options.replicate_token_file) is None:
        return None
    secret = read_text(path, "the secret of the nodes in").strip()
    if not secret or " " in secret or not secret.isascii() or not secret.isprintable():
        raise ConfigError(f"{path} must hold one word of printable ASCII")
    return secret


def _read_definitions(options: ServeOptions) -> Definitions:
    if (path := options.definitions) is None:
        return Definitions()
    wanted = parse(read_text(path, "the definitions"), path)
    for line in wanted.doubts:
        logger.warning("%s", line)
    if options.group is not None and (wanted.webhooks or wanted.alerts):
        raise ConfigError(
            f"{path}: definitions cannot have webhooks or alerts with --group: create them over the group's HTTP gateway, or "
            "with `toymqctl webhooks` and `toymqctl alerts`"
        )
    if (wanted.webhooks or wanted.alerts) and options.http is None and options.https is None:
        raise ConfigError(f"{path}: the gateway pushes webhooks and watches for alerts: they need --http or --https")
    if wanted.amqp and options.amqp is None and options.amqps is None:
        raise ConfigError(f"{path}: exchanges, queues and bindings are those of AMQP: they need --amqp or --amqps")
    return wanted
