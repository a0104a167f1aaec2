"""The settings in force of one topic: its own, options of the broker, defaults, and which. ADR 0131.

A description has the topic's own settings alone: what holds without them is the broker's, and the same for all topics.
"""

from dataclasses import fields
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from toymq_py.config.option_schema import options_of
from toymq_py.config.options import BrokerOptions, ServeOptions, TopicSettings
from toymq_py.errors import BadName, NoSuchTopic
from toymq_py.gateway.operations import TOPIC, Answer, Operation
from toymq_py.gateway.request_context import Gateway
from toymq_py.gateway.topic_operations import json_response
from toymq_py.topic import Topic

WITHOUT_OPTION = {"when_full": "reject"}
"""What holds of a setting that is neither set nor an option; without a value there is no limit."""

_VALUE = {"type": ["integer", "string", "null"]}
IN_FORCE = {"type": "object", "required": ["topic", "settings"], "properties": {
    "topic": {"type": "string"}, "settings": {"type": "array", "items": {
        "type": "object", "required": ["setting", "value", "from", "default", "option"], "properties": {
            "setting": {"type": "string"}, "value": _VALUE, "from": {"enum": ["topic", "option", "default", "dead letters"]},
            "default": _VALUE, "option": {"type": ["string", "null"]}}}}}}  # fmt: skip


def in_force(topic: Topic, options: BrokerOptions) -> list[dict[str, Any]]:
    """Each setting: the ``value`` that holds, where it is ``from``, the ``default`` that holds without one of the topic's own,
    and the broker's ``option`` for that."""
    sources = options.sources if isinstance(options, ServeOptions) else {}
    of_broker = {each.name: each.attribute for each in options_of(type(options))}
    found = []
    for name in (each.name for each in fields(TopicSettings)):
        attribute = of_broker.get(name)
        default = WITHOUT_OPTION.get(name) if attribute is None else getattr(options, attribute)
        own = getattr(topic.settings, name)
        value: int | str | None
        if topic.is_dead_letters and name == "max_attempts":
            value, where = 0, "dead letters"  # a letter never becomes one again
        elif own is not None:
            value, where = own, "topic"
        else:
            value, where = default, "option" if attribute in sources else "default"
        option = name if attribute is not None else None
        found.append({"setting": name, "value": value, "from": where, "default": default, "option": option})
    return found


async def get_settings(gateway: Gateway, request: Request) -> Response:
    """``GET /v1/topics/{t}/settings``."""
    topic = gateway.broker.topic(TOPIC.need(request))
    return json_response({"topic": topic.name, "settings": in_force(topic, gateway.broker.options)})


OPERATIONS = (
    Operation("GET", "/v1/topics/{topic}/settings", "topicSettings", "Settings in force of a topic, and where each is from.",
              get_settings, "describe", (TOPIC,),
              answers={200: Answer("In milliseconds, bytes and counts; null: no limit.", IN_FORCE)},
              errors=(BadName, NoSuchTopic), safe=True),
)  # fmt: skip
