"""`firesteel top`: the gateway's state in a terminal, over its own API.

`frame.py` is pure: a snapshot and what the user selected -> the lines of the screen. `client.py` asks the
gateway, `app.py` owns the terminal and the keys. Never decides anything about models: a key sends a request.
"""

from __future__ import annotations

import os
import sys
import time

import click

from firesteel.cli import options
from firesteel.cli.top.client import KEY_VARIABLE, GatewayClient, Snapshot, base_url
from firesteel.library import documents
from firesteel.library.serve import certificate_of, gateway_url


@click.command("top")
@click.option("--url", metavar="URL", help="Watch a gateway on another host, such as http://spark:8080.")
@click.option("--once", is_flag=True, help="Print the state once and exit, without keys and curves.")
@options.json_option
def command(url: str | None, once: bool, as_json: bool) -> None:
    """Watch the gateway in this terminal: models, memory, curves, requests, logs.

    l loads the selected model and u unloads it; ? shows all keys, q quits.
    A gateway with keys asks for an admin key, in FIRESTEEL_API_KEY.
    """
    address = base_url(url or gateway_url())
    client = GatewayClient(address, os.environ.get(KEY_VARIABLE) or None, certificate_of(address))
    if as_json:
        options.print_json(documents.serve.TopJson.of(client.state(), url=client.url))
    elif once or not (sys.stdin.isatty() and sys.stdout.isatty()):
        _print_once(client)
    else:
        from firesteel.cli.output.show import out
        from firesteel.cli.top.app import TopApp

        # Asked here, so that a wrong address or key is an error message and not an empty screen.
        TopApp(client, out, client.state()).run()


def _print_once(client: GatewayClient) -> None:
    from firesteel.cli.output.show import out
    from firesteel.cli.top.app import glyphs_of
    from firesteel.cli.top.frame import once

    for line in once(Snapshot(client.url, time.time(), client.state()), out.width, glyphs_of(out)):
        out.print(line, soft_wrap=True)
