"""What launches took on this host, kept from start to start: `realised.json` under FIRESTEEL_HOME.

The next plan of the same launch believes it more than any estimate. Only a figure hangs on it: what cannot be
read is none.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

from firesteel.edge.home import Home, write_text
from firesteel.planner import Realised

_KEPT = 100


def remember(home: Home, realised: Realised) -> None:
    """The newest last; the oldest are forgotten."""
    known = {key: each for key, each in read_realised(home).items() if key != realised.key}
    kept = [*known.values(), realised][-_KEPT:]
    write_text(_path(home), json.dumps([asdict(each) for each in kept], indent=1))


def read_realised(home: Home) -> Mapping[str, Realised]:
    try:
        rows = json.loads(_path(home).read_text("utf-8"))
        return {row["key"]: Realised(**row) for row in rows}
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def _path(home: Home) -> Path:
    return home.root / "realised.json"
