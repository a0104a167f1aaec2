"""How ``toymqctl alerts`` shows a rule that fires. With a real broker: tests/e2e/ctl/test_alerts.py."""

from typing import Any

import pytest
from click.testing import CliRunner

from toymqctl import alerts


@pytest.mark.parametrize(
    ("unit", "value", "shown"), [("ms", 199_139, "3.3m"), ("bytes", 52_944_699_392, "49.3GiB"), ("messages", 199_139, "199139")]
)
def test_a_value_is_shown_as_everywhere(monkeypatch: pytest.MonkeyPatch, unit: str, value: int, shown: str) -> None:
    """Found: an age was shown as `199139ms`."""
    rule = {
        "name": "old", "when": "age", "topic": "orders", "threshold": 60_000, "for_ms": 0, "unit": unit, "url": None,
        "to": "alerts", "firing": 1, "failure": None,
        "troubles": [{"topic": "orders", "consumer": "billing", "value": value, "firing": True}],
    }  # fmt: skip

    class Gateway:
        def ask(self, method: str, path: str) -> dict[str, Any]:
            return {"alerts": [rule]}

    monkeypatch.setattr(alerts, "gateway_of", lambda broker: Gateway())
    told = CliRunner().invoke(alerts.alerts, []).output
    assert told.splitlines()[-1] == f"old: consumer billing of orders: {shown}"
