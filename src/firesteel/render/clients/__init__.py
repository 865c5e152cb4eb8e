"""Configuration for the programs that people point at a service: what each is told, and into which file.

`settings` says what a client must know of an endpoint; `shown` writes that out whole, `merged` puts it into a
file that is there already, without losing a line of it. Keys are named by their variable and never written.
Which files a client reads, and where that was seen, is data (`data/clients`). Touches no file itself.
"""

from firesteel.render.clients.known import KnownClient, client, names
from firesteel.render.clients.merge import merged, shown
from firesteel.render.clients.settings import ClientEndpoint, ClientSettings, SettingEdit, settings

__all__ = [
    "ClientEndpoint",
    "ClientSettings",
    "KnownClient",
    "SettingEdit",
    "client",
    "merged",
    "names",
    "settings",
    "shown",
]
