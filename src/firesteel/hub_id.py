"""Names of repositories on the Hub: `ORG/NAME`."""

from __future__ import annotations

import re

# As the Hub has them: up to 96 characters in a part; `--` separates the parts in its cache's folder names.
_HUB_ID = re.compile(r"(?!.*(?:--|\.\.))[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}\Z", re.ASCII)


def is_hub_id(text: str) -> bool:
    """Whether a text has the form of a Hub id; only the Hub knows whether the repository exists."""
    return _HUB_ID.match(text) is not None
