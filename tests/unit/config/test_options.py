"""Quantities and limits of options. Contract: clients.md, "Command lines"."""

import re
from dataclasses import fields
from typing import Any

import pytest

from toymq_py.config.options import BrokerOptions, ServeOptions
from toymq_py.errors import ConfigError
from toymq_py.units import DURATION_MS_MAX, parse_duration_ms, parse_size


@pytest.mark.parametrize(
    ("text", "ms"),
    [("0", 0), ("250", 250), ("250ms", 250), ("30s", 30_000), ("5m", 300_000), ("24h", 86_400_000), ("7d", 604_800_000),
     ("30 s", 30_000)],
)  # fmt: skip
def test_durations(text: str, ms: int) -> None:
    assert parse_duration_ms(text) == ms


@pytest.mark.parametrize("text", ["", "s", "-1", "1.5s", "1w", "1S", "10000d", "9" * 30, "1_0", "٣"])
def test_what_is_no_duration_is_said(text: str) -> None:
    with pytest.raises(ConfigError, match=r"duration|ten years"):
        parse_duration_ms(text)


@pytest.mark.parametrize(
    ("text", "size"), [("0", 0), ("7B", 7), ("64KiB", 65_536), ("64MiB", 1 << 26), ("2GiB", 1 << 31), ("1TiB", 1 << 40)]
)
def test_sizes(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "MiB", "-1", "64MB", "64mib", "1.5GiB", "64 M"])
def test_what_is_no_size_is_said(text: str) -> None:
    with pytest.raises(ConfigError, match="size"):
        parse_size(text)


@pytest.mark.parametrize(
    "options",
    [
        {"segment_bytes": 4095},
        {"segment_bytes": (1 << 30) + 1},
        {"max_payload_bytes": 0},
        {"max_payload_bytes": 64 * 1024 * 1024 + 1},
        {"min_free_bytes": -1},
        {"max_connections": 0},
        {"max_held_bytes": (1 << 20) - 1},
        {"token_percent": 0},
        {"address_percent": 101},
        {"visibility_ms": 0},
        {"visibility_ms": DURATION_MS_MAX + 1},
        {"max_attempts": -1},
        {"nack_backoff_min_ms": 500, "nack_backoff_max_ms": 499},
        {"dedupe_keys": -1},
        {"fsync": "sometimes"},
        {"fsync_interval_ms": 0},
    ],
    ids=str,
)
def test_options_that_make_no_sense_are_named(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(options))):
        BrokerOptions(**options)


NODE = {"cluster": "c", "etcd": "http://e:2379"}
TLS = {"replicate_cert": "c.pem", "replicate_key": "k.pem", "replicate_ca": "ca.pem"}


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"etcd": "http://e:2379"}, "--etcd does nothing without --cluster"),
        ({"name": "n1"}, "--name does nothing without --cluster"),
        ({"cluster": "c"}, "--cluster needs --etcd"),
        ({"group": "a"}, "--group does nothing without --cluster"),
        (NODE | {"group": "a_b"}, "invalid name 'a_b' of a group"),
        (NODE | {"group": "a", "amqp": "127.0.0.1:5672"}, "--amqp and --group exclude each other"),
        ({"cluster": "a/b", "etcd": "http://e:2379"}, "invalid name"),
        ({"cluster": "c", "etcd": "e:2379"}, "is not an endpoint: write http://host:port, such as http://e1:2379"),
        ({"cluster": "c", "workers": 2}, "--cluster and --workers exclude each other"),
        ({"cluster": "c", "etcd": "http://e:2379,"}, "is not an endpoint"),
        ({"cluster": "c", "etcd": "http://e:2379", "fsync": "never"}, "--cluster needs --fsync always"),
        ({"cluster": "c", "etcd": "http://e:2379", "listen": "127.0.0.1:0"}, "give --advertise"),
        ({"cluster": "c", "etcd": "http://e:2379", "listen": "0.0.0.0:6789", "insecure_public": True}, "give --advertise"),
        ({"cluster": "c", "etcd": "http://e:2379", "replicate": "10.0.0.1:6791"}, "would cross the network in the clear"),
        (NODE | {"replicate": "10.0.0.1:6791", "auth_file": "a.toml"}, "insist with --replicate-plaintext"),
        (NODE | {"replicate": "10.0.0.1:6791", "replicate_plaintext": True}, "no secret is asked for"),
        (NODE | {"replicate_cert": "c.pem", "replicate_key": "k.pem"}, "belong together"),
        (NODE | TLS | {"replicate_plaintext": True}, "--replicate-plaintext contradicts --replicate-cert"),
        ({"replicate_plaintext": True}, "--replicate-plaintext does nothing without --cluster"),
        ({"replicate_ca": "ca.pem"}, "--replicate-ca does nothing without --cluster"),
        ({"cluster": "c", "etcd": "http://e:2379", "replicate": "127.0.0.1:6789"}, "give each a port of its own"),
    ],
    ids=lambda value: str(value)[:60],
)
def test_options_of_a_cluster_that_make_no_sense_are_named(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(said)):
        ServeOptions(**options)


def test_a_node_needs_a_cluster_and_etcd() -> None:
    urls = "http://e1:2379,https://e2:2379"
    assert "--replicate" not in ServeOptions().listeners()
    node = ServeOptions(cluster="c", etcd=urls, listen="0.0.0.0:6789", advertise="10.0.0.1:6789", insecure_public=True)
    assert node.listeners()["--replicate"] == "127.0.0.1:6791"
    assert ServeOptions(**NODE, amqp="127.0.0.1:5672").listeners()["--amqp"] == "127.0.0.1:5672"


@pytest.mark.parametrize(
    "options",
    [TLS, {"replicate_plaintext": True, "replicate_token_file": "t"}, {"replicate_plaintext": True, "insecure_public": True}],
    ids=["TLS", "plaintext and a secret", "insecure"],
)
def test_replicas_may_be_on_other_machines(options: dict[str, Any]) -> None:
    node = ServeOptions(**NODE, replicate="10.0.0.1:6791", **options)
    assert node.check_exposure("--replicate", "10.0.0.1")


def test_every_number_has_its_unit_in_its_name() -> None:
    counts = {"max_connections", "max_topics", "max_consumers", "max_subscriptions", "dedupe_keys", "dedupe_keys_total",
              "max_attempts", "metrics_objects", "address_percent", "token_percent", "admin_reserve",
              "max_unacked"}  # fmt: skip
    for option in fields(BrokerOptions):
        if option.type == "int" or option.type is int:
            assert option.name.endswith(("_ms", "_bytes")) or option.name in counts, option.name
