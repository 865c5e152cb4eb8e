"""Tests of the maintainers' tools import them from `scripts`, as the scripts themselves do."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "scripts"))
