"""`firesteel serve --running`: the page over what `up` started."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from firesteel.edge.home import Home, lock
from firesteel.gateway.address import Address, lock_path, write_address
from tests.conftest import Firesteel, run_firesteel
from tests.gateway.page.conftest import free_ports


def test_nothing_to_show(firesteel: Firesteel) -> None:
    ran = firesteel("serve", "--running")
    assert ran.code == 2
    assert "nothing runs" in ran.err and "firesteel up" in ran.err


def test_a_gateway_has_the_page_already(firesteel: Firesteel, tmp_path: Path) -> None:
    home = Home(tmp_path / "home")
    with lock(lock_path(home)):
        write_address(home, Address("http://127.0.0.1:19999", ("coder",), has_keys=False, pid=os.getpid()))
        assert "http://127.0.0.1:19999/" in firesteel("serve", "--running").out
        assert firesteel("serve", "--running", "--json").json["url"] == "http://127.0.0.1:19999"


@pytest.mark.real
def test_a_service_is_shown_and_never_stopped(quick_home: Home, free_port: int) -> None:
    up = run_firesteel(quick_home.root, "up", "smollm2", "--port", str(free_port), "--json")
    assert up.code == 0, up.err
    listen = f"127.0.0.1:{free_ports(1)[0]}"
    words = [sys.executable, "-m", "firesteel", "serve", "--running", "--listen", listen, "--json"]
    environment = {**os.environ, "FIRESTEEL_HOME": str(quick_home.root)}
    page = subprocess.Popen(words, stdout=subprocess.PIPE, env=environment)
    assert page.stdout
    try:
        assert select.select([page.stdout], [], [], 60)[0], "it says nothing"
        url = json.loads(page.stdout.readline())["url"]
        with urllib.request.urlopen(url, timeout=120) as answer:
            assert b"firesteel" in answer.read()
        with urllib.request.urlopen(f"{url}/api/state", timeout=120) as answer:
            (model,) = json.load(answer)["models"]
        assert (model["name"], model["outside"]) == ("smollm2", True)
        request = urllib.request.Request(f"{url}/api/models/smollm2/unload", b"", method="POST")
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(request, timeout=120)
        assert refused.value.code == 409
        refused.value.close()
    finally:
        page.send_signal(signal.SIGTERM)
        page.communicate(timeout=60)
    services = run_firesteel(quick_home.root, "ps", "--json").json["services"]
    assert [service["phase"] for service in services] == ["ready"]
