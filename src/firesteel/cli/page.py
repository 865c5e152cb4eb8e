"""`firesteel page`: the web page over services that `firesteel up` started, without a service file.

Nothing here may load pydantic, as in `serve`.
"""

from __future__ import annotations

import json
from functools import partial

import click

from firesteel.cli import options
from firesteel.cli.output.invocation import typed
from firesteel.cli.serve import show
from firesteel.library import serve


@click.command("page")
@click.option("--listen", metavar="ADDRESS:PORT", default="127.0.0.1:8080", help="Listen here.")
@options.json_option
def command(listen: str, as_json: bool) -> None:
    """Show the web page over the services that run.

    `firesteel serve` has the page at its own URL; this command prints it then, and ends. Otherwise it serves
    the page over what `firesteel up` started, until Ctrl-C; services that start or stop meanwhile come and
    go. It never starts or stops one.
    """
    if gateway := serve.gateway():
        click.echo(json.dumps({"document": "firesteel.serve/1", "url": gateway.url, "models": gateway.models})
                   if as_json else typed(f"the gateway has the page: {gateway.url}/"))  # fmt: skip
        return
    serve.run_page(serve.plan_page(listen), partial(show, as_json=as_json))
