"""Configuration of the clients that people point at a service: OpenCode, Claude Code, Codex and others.

`settings` gives what a client must know about an endpoint; `render_settings` writes a whole file,
`merge_settings` puts the settings into an existing file and keeps everything else in it. API keys are named
by their variable and never written. Which files a client reads is data (`data/clients`). It never reads or
writes a file itself.
"""

from firesteel.render.clients.known import KnownClient, client_names, load_client
from firesteel.render.clients.merge import merge_settings, render_settings
from firesteel.render.clients.settings import ClientEndpoint, ClientSettings, SettingEdit, settings

__all__ = [
    "ClientEndpoint",
    "ClientSettings",
    "KnownClient",
    "SettingEdit",
    "client_names",
    "load_client",
    "merge_settings",
    "render_settings",
    "settings",
]
