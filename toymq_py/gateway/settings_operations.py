"""The effective settings of one topic, and whether each is the topic's own, an option of the broker or a default. ADR 0131.

The description of a topic has only its own settings. The values of the others come from the broker, the same for all topics.
"""

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from toymq_py.config.options import BrokerOptions, ServeOptions
from toymq_py.config.topic_settings import OPTIONS, TopicSettings, fixed_value
from toymq_py.errors import BadName, NoSuchTopic
from toymq_py.gateway import whole_topics
from toymq_py.gateway.operations import TOPIC, Answer, Operation
from toymq_py.gateway.request_context import Gateway
from toymq_py.gateway.topic_operations import json_response

WITHOUT_OPTION = {"when_full": "reject"}
"""The value of a setting that is neither set nor an option; without one there is no limit."""

_VALUE = {"type": ["integer", "string", "null"]}
IN_FORCE = {"type": "object", "required": ["topic", "settings"], "properties": {
    "topic": {"type": "string"}, "settings": {"type": "array", "items": {
        "type": "object", "required": ["setting", "value", "from", "default", "option"], "properties": {
            "setting": {"type": "string"}, "value": _VALUE,
            "from": {"enum": ["topic", "partitions", "option", "default", "dead letters"]},
            "default": _VALUE, "option": {"type": ["string", "null"]}}}}}}  # fmt: skip


def in_force(name: str, own: Sequence[Mapping[str, Any]], options: BrokerOptions) -> list[dict[str, Any]]:
    """Each setting with its effective ``value``, where that comes ``from``, the ``default`` for topics without the setting, and
    the broker's ``option`` for the default. Where partitions differ, the value is None and comes from ``partitions``.

    Args:
        own: the settings of the topic, or of each of its partitions.
    """
    sources = options.sources if isinstance(options, ServeOptions) else {}
    found = []
    for setting in (each.name for each in fields(TopicSettings)):
        attribute = OPTIONS.get(setting)
        default = WITHOUT_OPTION.get(setting) if attribute is None else getattr(options, attribute)
        values = {each.get(setting) for each in own} or {None}
        value: int | str | None
        if (value := fixed_value(name, setting)) is not None:
            where = "dead letters"
        elif len(values) > 1:
            value, where = None, "partitions"
        elif (only := values.pop()) is not None:
            value, where = only, "topic"
        else:
            value, where = default, "option" if attribute in sources else "default"
        option = setting if attribute is not None else None
        found.append({"setting": setting, "value": value, "from": where, "default": default, "option": option})
    return found


async def get_settings(gateway: Gateway, request: Request) -> Response:
    """``GET /v1/topics/{t}/settings``."""
    name = TOPIC.need(request)
    if whole_topics.is_whole(gateway, name):
        own = [part["settings"] for part in (await whole_topics.describe(gateway, request, name))["parts"]]
    else:
        own = [gateway.broker.topic(name).settings.to_json()]
    return json_response({"topic": name, "settings": in_force(name, own, gateway.broker.options)})


OPERATIONS = (
    Operation("GET", "/v1/topics/{topic}/settings", "topicSettings", "Settings in force of a topic, and where each is from.",
              get_settings, "describe", (TOPIC,),
              answers={200: Answer("In milliseconds, bytes and counts; null: no limit.", IN_FORCE)},
              errors=(BadName, NoSuchTopic), safe=True),
)  # fmt: skip
