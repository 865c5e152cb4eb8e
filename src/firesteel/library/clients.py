"""Programs that use a model, such as OpenCode or Codex: what to point them at, and their settings."""

from __future__ import annotations

import re
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from firesteel.edge import files
from firesteel.errors import UsageError
from firesteel.library.run import services
from firesteel.library.serve import gateway
from firesteel.render import client_config, clients
from firesteel.render.clients import ClientSettings, KnownClient, Option
from firesteel.run.endpoints import base_url
from firesteel.values import Value, replace
from firesteel.workspace import find_workspace

if TYPE_CHECKING:
    from firesteel.gateway.client_target import ClientTarget

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,62}\Z", re.ASCII)
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,99}\Z", re.ASCII)


class ConfiguredClient(Value):
    """A client and its settings for a target."""

    name: str
    client: KnownClient
    target: ClientTarget
    settings: ClientSettings
    path: Path | None
    """The client's own file; None: it is configured by environment variables."""

    @property
    def text(self) -> str:
        """The settings as the client's file has them."""
        return client_config.render_settings(self.settings, self.client.format)

    @property
    def notes(self) -> tuple[str, ...]:
        return (*self.settings.notes, self.target.note)


def client_names() -> tuple[str, ...]:
    return tuple(clients.client_names())


def client_target(
    model: str | None = None, *, context: int | None = None, direct: bool = False
) -> ClientTarget:
    """The endpoint that a client should use, with its limits and abilities: the gateway's unless `direct`."""
    from firesteel.gateway.client_target import find_target  # the planner

    return find_target(find_workspace(), services(), None if direct else gateway(), model, context)


def client_settings(client: str, target: ClientTarget) -> str:
    """The configuration that points a client (`opencode`, `codex`, ...) at a target, as the client's file."""
    settings = clients.settings(client, target.endpoint)
    return client_config.render_settings(settings, clients.load_client(client).format)


def configure_client(
    name: str,
    model: str | None = None,
    *,
    url: str | None = None,
    direct: bool = False,
    context: int | None = None,
    key: str | None = None,
    provider: str = "firesteel",
    file: Path | None = None,
    options: Collection[Option] = (),
) -> ConfiguredClient:
    """Settings that point a client at a model. `key`: the variable that has the key; `file`: not its own;
    `options`: settings that are only offered."""
    from firesteel.gateway.client_target import KEY_VARIABLE  # the planner

    for value, pattern, option in (
        (provider, _NAME, "--provider"),
        (key or KEY_VARIABLE, _VARIABLE, "--key"),
    ):
        if not pattern.match(value):
            raise UsageError(
                f"`{value}` cannot be used for {option}", next=f"{option} {KEY_VARIABLE.lower()}"
            )
    target = client_target(model, context=context, direct=direct)
    endpoint = replace(target.endpoint, provider=provider, key=key or target.endpoint.key)
    if url:
        base = base_url(url)
        endpoint = replace(endpoint, url=f"{base}/v1" if not urlsplit(base).path else url.rstrip("/"))
    client = clients.load_client(name)
    settings = clients.settings(name, endpoint, options)
    target = replace(target, endpoint=endpoint)
    return ConfiguredClient(name, client, target, settings, file or _config_path(client))


def offered(*, quiet: bool, stable_prompt: bool) -> tuple[Option, ...]:
    """The settings that are written only if they are asked for."""
    chosen: dict[Option, bool] = {"quiet": quiet, "stable-prompt": stable_prompt}
    return tuple(name for name, is_chosen in chosen.items() if is_chosen)


def write_client(configured: ConfiguredClient) -> tuple[bool, Path | None]:
    """Merge the settings into the client's file: whether it changed, and where the old one is kept."""
    client, path = configured.client, configured.path
    if path is None or client.format == "env":
        raise UsageError(
            f"{client.title} is configured by environment variables, not by a file",
            next=f"firesteel client {configured.name}",
        )
    before = files.read_settings(path)
    after = client_config.merge_settings(before, configured.settings, client.format, str(path))
    return (True, files.replace_settings(path, after)) if after != before else (False, None)


def _config_path(client: KnownClient) -> Path | None:
    if client.folder is None or client.new_file is None:
        return None
    folder = client.folder
    return files.settings_path(folder.variable, folder.default, client.files, client.new_file)
