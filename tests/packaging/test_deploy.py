"""deploy/: every file parses, names only existing metrics, options and commands, and its commands run."""

import configparser
import itertools
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from tests.support.broker_process import ROOT, BrokerProcess, run
from toymq_py.cli import main
from toymq_py.config.options import ServeOptions
from toymq_py.gateway.webhook_addresses import is_public
from toymq_py.metrics import TABLE, Kind
from toymq_py.observability.prometheus import PREFIX, exported_names

DEPLOY = ROOT / "deploy"
CONTAINERFILE = (DEPLOY / "Containerfile").read_text()
UNIT = configparser.RawConfigParser(strict=False)  # a unit may say a thing twice
UNIT.optionxform = str  # type: ignore[assignment, method-assign]
UNIT.read(DEPLOY / "systemd" / "toymq.service")
KUBERNETES: list[dict[str, Any]] = list(yaml.safe_load_all((DEPLOY / "kubernetes" / "toymq.yaml").read_text()))
COMPOSE: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
DASHBOARD: dict[str, Any] = json.loads((DEPLOY / "grafana" / "dashboards" / "toymq.json").read_text())
ALERTS = [
    rule for group in yaml.safe_load((DEPLOY / "prometheus" / "alerts.yml").read_text())["groups"] for rule in group["rules"]
]
CONTAINER = KUBERNETES[1]["spec"]["template"]["spec"]["containers"][0]
LABELS_OF_SCRAPES = {"instance", "job", "le"}


def in_json(keyword: str) -> list[str]:
    """Return the list behind a keyword of the container file."""
    (found,) = re.findall(rf"^{keyword}.*?(\[.*\])$", CONTAINERFILE, re.MULTILINE)
    words: list[str] = json.loads(found)
    return words


def serves() -> dict[str, list[str]]:
    """Return the arguments of every ``toymq serve``, by its source."""
    assert in_json("ENTRYPOINT") == ["sh", "/opt/toymq/entrypoint.sh"]
    assert "command" not in COMPOSE["services"]["toymq"], "it runs what the image runs"
    program, *arguments = shlex.split(UNIT["Service"]["ExecStart"])
    assert program.endswith("/toymq")
    return {"Containerfile": in_json("CMD"), "systemd": arguments, "kubernetes": CONTAINER["args"]}


def probes() -> Iterator[tuple[str, str, str]]:
    """Yield name, port and path of each probe."""
    (port, path), *others = re.findall(r"http://127\.0\.0\.1:(\d+)(/\w+)", in_json("HEALTHCHECK")[-1])
    assert others == []
    yield "Containerfile", port, path
    ports = {port["name"]: str(port["containerPort"]) for port in CONTAINER["ports"]}
    for name in ("startupProbe", "livenessProbe", "readinessProbe"):
        yield name, ports[CONTAINER[name]["httpGet"]["port"]], CONTAINER[name]["httpGet"]["path"]


def queries() -> list[tuple[str, str]]:
    """Return every expression that Prometheus evaluates, and its source."""
    panels = [(panel["title"], target["expr"]) for panel in DASHBOARD["panels"] for target in panel.get("targets", ())]
    return panels + [(rule["alert"], rule["expr"]) for rule in ALERTS]


# -- what runs


@pytest.mark.parametrize("where", serves())
def test_the_options_are_there_and_go_together(where: str, tmp_path: Path) -> None:
    verb, *options = serves()[where]
    assert verb == "serve"
    file = tmp_path / "toymq.toml"
    file.write_text("")
    options = [str(file) if word == "/etc/toymq/toymq.toml" else word for word in options]
    shown = CliRunner().invoke(main, ["config", "show", "--json", *options], env={"TOYMQ_CONFIG": "/dev/null"})
    assert shown.exit_code == 0, shown.output
    given = {row["option"] for row in map(json.loads, shown.output.splitlines()) if row["from"].startswith("--")}
    assert len(given) == sum(word.startswith("--") and word != "--config" for word in options)


def test_the_variables_are_options() -> None:
    names = set(re.findall(r"\b(TOYMQ_[A-Z_]+)=", CONTAINERFILE))
    assert names - {"TOYMQ_MYPYC"} == {"TOYMQ_DATA_DIR", "TOYMQ_CONFIG", "TOYMQ_AUTH_FILE"}, "but for the build's own"
    mounts = {mount["name"]: mount["mountPath"] for mount in CONTAINER["volumeMounts"]}
    assert auth_file(Path(mounts["tokens"])).parent.parent == Path(mounts["tokens"]), "volumes are open"
    assert in_json("VOLUME") == [mounts["data"], mounts["tokens"]]
    assert [f"toymq:{mounts['data']}", f"tokens:{mounts['tokens']}"] == COMPOSE["services"]["toymq"]["volumes"]
    assert re.search(r"TOYMQ_DATA_DIR=(\S+)", CONTAINERFILE)[1] == CONTAINER["volumeMounts"][0]["mountPath"]  # type: ignore[index]


def test_the_container_runs_with_its_arguments_and_its_probes_see_it(tmp_path: Path) -> None:
    own = in_json("CMD")[3:]
    assert own == CONTAINER["args"][3:]
    (http_port,) = {port for _, port, _ in probes()}
    assert f"0.0.0.0:{http_port}" == dict(itertools.pairwise(own))["--http"]
    options = [re.sub(r"^0\.0\.0\.0:\d+$", "127.0.0.1:0", word) for word in own]
    program, *check = in_json("HEALTHCHECK")
    assert program == "python"
    with BrokerProcess(tmp_path / "d", *options) as broker:
        assert "/metrics ready" in broker.ready_line
        for where, _, path in probes():
            assert urllib.request.urlopen(broker.http.rstrip("/") + path, timeout=10).status == 200, where
        here = [word.replace(f"http://127.0.0.1:{http_port}/", broker.http) for word in check]
        assert subprocess.run([sys.executable, *here], timeout=20, check=False).returncode == 0
    failed = subprocess.run([sys.executable, *here], timeout=20, check=False, stderr=subprocess.PIPE)
    assert b"refused" in failed.stderr
    assert failed.returncode != 0


def auth_file(volume: Path) -> Path:
    """Return the auth file's path in the directory that is mounted as the image's volume of tokens."""
    (path,) = re.findall(r"TOYMQ_AUTH_FILE=(\S+)", CONTAINERFILE)
    return volume / Path(path).relative_to(in_json("VOLUME")[1])


def started(tmp_path: Path, *arguments: str) -> tuple[subprocess.Popen[str], str]:
    """Run the image's command in a process of this machine. Returns: the process, and its HTTP address."""
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "TOYMQ_CONFIG": "/dev/null"}
    environment |= {"TOYMQ_AUTH_FILE": str(auth_file(tmp_path)), "TOYMQ_DATA_DIR": str(tmp_path / "d")}
    entrypoint = ["sh", str(DEPLOY / Path(in_json("ENTRYPOINT")[1]).name)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    process = subprocess.Popen([*entrypoint, *arguments], env=environment, text=True, **pipes)
    assert process.stdout is not None
    (*_, address) = re.findall(r"http://\S+:\d+/(?= )", process.stdout.readline()) or [""]
    return process, address


def ended(process: subprocess.Popen[str]) -> str:
    """End the process. Returns: its stderr."""
    process.terminate()
    _, errors = process.communicate(timeout=30)
    return errors


def status(url: str, token: str = "") -> int:
    request = urllib.request.Request(url, headers={"authorization": f"Bearer {token}"} if token else {})
    try:
        answer: int = urllib.request.urlopen(request, timeout=10).status
    except urllib.error.HTTPError as error:
        return error.code
    return answer


def test_the_first_start_prints_a_token_and_all_starts_ask_for_it(tmp_path: Path) -> None:
    """Found by trials: the image served everything to all that reached it; with a volume of mode 0777, nothing."""
    tmp_path.chmod(0o777)
    options = [re.sub(r"^0\.0\.0\.0:\d+$", "127.0.0.1:0", word) for word in in_json("CMD")]
    process, address = started(tmp_path, *options)
    statuses = [status(f"{address}v1/topics"), status(f"{address}healthz")]
    said = ended(process)
    (token,) = re.findall(r"administrator, shown this once: (\S{43})$", said, re.MULTILINE)
    assert statuses == [401, 200]
    file = auth_file(tmp_path)
    assert [path.stat().st_mode & 0o777 for path in (file.parent, file)] == [0o700, 0o600]
    assert token not in file.read_text()
    process, address = started(tmp_path, *options)
    statuses = [status(f"{address}v1/topics"), status(f"{address}v1/topics", token), status(f"{address}v1/webhooks", token)]
    assert "shown this once" not in ended(process)
    assert statuses == [401, 200, 200]


def test_other_commands_of_the_image_make_no_token(tmp_path: Path) -> None:
    process, _ = started(tmp_path, "--version")
    ended(process)
    assert list(tmp_path.iterdir()) == []


def test_what_is_shipped_is_bounded_and_has_no_known_password() -> None:
    for name, service in COMPOSE["services"].items():
        assert {"mem_limit", "cpus", "pids_limit"} <= service.keys(), name
        assert (service["cap_drop"], service["security_opt"]) == (["ALL"], ["no-new-privileges:true"]), name
    assert set(CONTAINER["resources"]["limits"]) == {"cpu", "memory"}
    grafana = COMPOSE["services"]["grafana"]["environment"]
    assert grafana["GF_SECURITY_DISABLE_INITIAL_ADMIN_CREATION"] == "true"
    assert (grafana["GF_AUTH_BASIC_ENABLED"], grafana["GF_AUTH_ANONYMOUS_ORG_ROLE"]) == ("false", "Viewer")
    assert "PASSWORD" not in (DEPLOY / "compose.yaml").read_text().upper().replace("NO PASSWORD", "")


def test_the_network_policy_is_about_this_pod_and_its_ports() -> None:
    (policy,) = (each["spec"] for each in KUBERNETES if each["kind"] == "NetworkPolicy")
    pod = KUBERNETES[1]["spec"]["template"]
    assert policy["podSelector"]["matchLabels"] == pod["metadata"]["labels"]
    assert policy["policyTypes"] == ["Ingress", "Egress"]
    ports = [port["port"] for rule in policy["ingress"] for port in rule["ports"]]
    assert ports == [port["name"] for port in CONTAINER["ports"]]
    assert all(rule["from"] for rule in policy["ingress"]), "no port is open to all"
    (outside,) = (to["ipBlock"] for rule in policy["egress"] for to in rule["to"] if "ipBlock" in to)
    assert all(not is_public(network.partition("/")[0]) for network in outside["except"])
    assert "169.254.0.0/16" in outside["except"]


def test_an_image_is_named_by_digest_or_a_reason_stands_there() -> None:
    for name in ("Containerfile", "compose.yaml", "kubernetes/toymq.yaml"):
        assert "@sha256:" in (DEPLOY / name).read_text(), name
    for service in COMPOSE["services"].values():
        assert "build" in service or re.search(r":v?\d+\.\d+\.\d+(@sha256:\w+)?$", service["image"])


def test_a_broker_that_is_not_ready_is_not_cut_off() -> None:
    """One degraded topic makes /readyz fail, and no other broker could serve the other topics."""
    assert [path for _, _, path in probes()] == ["/healthz", "/healthz", "/healthz", "/readyz"]
    assert KUBERNETES[0]["spec"]["publishNotReadyAddresses"] is True


def test_a_reload_is_no_end() -> None:
    """SIGHUP ends a broker without a configuration file to read again, so the unit passes --config."""
    assert UNIT["Service"]["ExecReload"] == "/bin/kill -HUP $MAINPID"
    assert "--config" in serves()["systemd"]


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="there is no systemd-analyze")
def test_systemd_understands_every_line_and_finds_it_confined(tmp_path: Path) -> None:
    """systemd only warns of an unknown setting, which has no effect and would be missed."""
    unit = tmp_path / "toymq.service"
    written = (DEPLOY / "systemd" / "toymq.service").read_text()
    unit.write_text(written.replace("/opt/toymq/bin/toymq", sys.executable))
    for command in (["verify"], ["security", "--offline=true", "--threshold=20"]):
        done = subprocess.run(["systemd-analyze", *command, str(unit)], capture_output=True, text=True, timeout=60, check=False)
        assert (done.returncode, str(unit) in done.stderr) == (0, False), done.stdout + done.stderr


def test_an_exit_that_is_not_to_be_repeated_is_the_one_of_a_wrong_option(tmp_path: Path) -> None:
    done = run("serve", "--data-dir", str(tmp_path / "none" / "d"), executed=True)
    assert str(done.returncode) == UNIT["Service"]["RestartPreventExitStatus"]


def test_there_is_time_to_shut_down() -> None:
    needed_s = ServeOptions().shutdown_timeout_ms / 1000 + 5
    assert float(UNIT["Service"]["TimeoutStopSec"]) > needed_s
    assert KUBERNETES[1]["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] > needed_s
    assert float(COMPOSE["services"]["toymq"]["stop_grace_period"].removesuffix("s")) > needed_s


# -- how it is confined


def test_no_one_is_root_and_the_root_is_read_only() -> None:
    assert re.findall(r"^USER (\d+):\d+$", CONTAINERFILE, re.MULTILINE) == ["10001"]
    pod = KUBERNETES[1]["spec"]["template"]["spec"]["securityContext"]
    assert (pod["runAsNonRoot"], pod["runAsUser"], pod["fsGroup"]) == (True, 10001, 10001)
    assert CONTAINER["securityContext"] == {
        "allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]},
    }  # fmt: skip
    service = COMPOSE["services"]["toymq"]
    assert (service["read_only"], service["cap_drop"]) == (True, ["ALL"])
    assert UNIT["Service"]["User"] == "toymq"
    assert UNIT["Service"]["ProtectSystem"] == "strict"
    assert UNIT["Service"]["CapabilityBoundingSet"] == ""


def test_ports_are_published_to_this_machine_alone() -> None:
    ports = {name: service.get("ports", []) for name, service in COMPOSE["services"].items()}
    assert {name: len(some) for name, some in ports.items()} == {"toymq": 3, "prometheus": 0, "grafana": 1}
    assert [port for some in ports.values() for port in some if not port.startswith("127.0.0.1:")] == []


def test_what_is_published_looks_at_the_name_that_it_is_called_by() -> None:
    """Found by an attack: a page whose name leads to this machine read the names of topics from Prometheus and Grafana."""
    grafana = COMPOSE["services"]["grafana"]["environment"]
    assert (grafana["GF_SERVER_DOMAIN"], grafana["GF_SERVER_ENFORCE_DOMAIN"]) == ("localhost", "true")


def test_one_directory_has_one_broker() -> None:
    assert KUBERNETES[1]["spec"]["replicas"] == 1
    assert KUBERNETES[0]["spec"]["selector"] == KUBERNETES[1]["spec"]["selector"]["matchLabels"]
    assert {port["port"] for port in KUBERNETES[0]["spec"]["ports"]} == {port["containerPort"] for port in CONTAINER["ports"]}


def test_what_is_mounted_and_copied_is_there() -> None:
    mounts = [volume.split(":")[0] for service in COMPOSE["services"].values() for volume in service["volumes"]]
    for source in mounts:
        assert (DEPLOY / source).exists() if source.startswith(".") else source in COMPOSE["volumes"], source
    build = COMPOSE["services"]["toymq"]["build"]
    assert (DEPLOY / build["context"] / build["dockerfile"]).exists()
    sources = [word for line in re.findall(r"^COPY (?!--)(.*)$", CONTAINERFILE, re.MULTILINE) for word in line.split()[:-1]]
    assert len(sources) >= 6
    assert [source for source in sources if not (ROOT / source).exists()] == []
    let_in = set(re.findall(r"^!(.*)$", (DEPLOY / "Containerfile.dockerignore").read_text(), re.MULTILINE))
    assert set(sources) == let_in, "the build sees what it copies, and nothing else"


# -- what is asked of Prometheus


def test_every_metric_that_is_asked_for_exists() -> None:
    names = {name for _, expression in queries() for name in re.findall(r"\btoymq_\w+", expression)}
    assert len(names) > 20
    assert names - exported_names() == set()


def test_every_label_that_is_asked_for_exists() -> None:
    labels = {PREFIX + metric.name: set(metric.labels) for metric in TABLE}
    for metric in TABLE:
        if metric.kind is Kind.HISTOGRAM:
            labels |= {f"{PREFIX}{metric.name}_{suffix}": {"le", *metric.labels} for suffix in ("bucket", "count", "sum")}
    asked = [
        (where, name, label)
        for where, expression in queries()
        for name, selector in re.findall(r"\b(toymq_\w+)\{([^}]*)\}", expression)
        for label in re.findall(r"(\w+)\s*[=!]~?", selector)
    ]
    assert len(asked) > 20
    assert [each for each in asked if each[2] not in labels[each[1]] | LABELS_OF_SCRAPES] == []
    for panel in DASHBOARD["panels"]:
        for target in panel.get("targets", ()):
            (name, *_) = re.findall(r"\btoymq_\w+", target["expr"])
            shown = set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]))
            assert shown <= labels[name] | LABELS_OF_SCRAPES, panel["title"]


def test_errors_that_are_asked_for_are_codes() -> None:
    from toymq_py.errors import REQUEST_ERRORS

    (codes,) = (re.findall(r'code=~"([A-Z_|]+)"', rule["expr"]) for rule in ALERTS if rule["alert"] == "ToymqErrors")
    assert set(codes[0].split("|")) <= set(REQUEST_ERRORS)


@pytest.mark.parametrize("rule", ALERTS, ids=lambda rule: str(rule["alert"]))
def test_an_alert_says_what_to_do(rule: dict[str, Any]) -> None:
    assert rule["labels"]["severity"] in ("page", "ticket")
    assert rule["annotations"]["summary"]
    if rule["alert"] == "ToymqDown":
        return
    page, _, anchor = rule["annotations"]["runbook"].partition("#")
    titles = re.findall(r"^## (.*)$", (ROOT / page).read_text(), re.MULTILINE)
    assert anchor in {title.lower().replace(" ", "-") for title in titles}


def test_the_dashboard_is_one() -> None:
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(set(ids)) == len(ids) > 20
    places = [
        (panel["gridPos"]["x"] + x, panel["gridPos"]["y"] + y)
        for panel in DASHBOARD["panels"] for x in range(panel["gridPos"]["w"]) for y in range(panel["gridPos"]["h"])
    ]  # fmt: skip
    assert len(set(places)) == len(places), "no panel lies on another"
    assert max(x for x, _ in places) == 23
    assert {variable["name"] for variable in DASHBOARD["templating"]["list"]} == {"datasource", "instance"}


def test_what_is_provisioned_fits_together() -> None:
    grafana = COMPOSE["services"]["grafana"]["volumes"]
    provider = yaml.safe_load((DEPLOY / "grafana/provisioning/dashboards/toymq.yaml").read_text())["providers"][0]
    assert f"./grafana/dashboards:{provider['options']['path']}:ro" in grafana
    source = yaml.safe_load((DEPLOY / "grafana/provisioning/datasources/prometheus.yaml").read_text())["datasources"][0]
    assert source["url"] == "http://prometheus:9090"
    scraped = yaml.safe_load((DEPLOY / "prometheus/prometheus.yml").read_text())
    (target,) = scraped["scrape_configs"][0]["static_configs"][0]["targets"]
    assert target == "toymq:" + dict(zip(in_json("CMD"), in_json("CMD")[1:], strict=False))["--metrics"].split(":")[1]
    assert scraped["scrape_configs"][0]["job_name"] == "toymq", "as the alert has it"
    assert [(DEPLOY / "prometheus" / name).exists() for name in scraped["rule_files"]] == [True]
