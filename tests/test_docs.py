"""The generated pages are what the program would write now."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent


def test_pages_are_up_to_date() -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "scripts/make-docs"), "--check"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_module_list_has_every_file_with_a_line() -> None:
    page = (ROOT / "docs/modules.md").read_text()
    for path in (ROOT / "src/firesteel").rglob("*.py"):
        if path.name not in ("__init__.py", "__main__.py"):
            row = next(line for line in page.splitlines() if line.split()[:1] == [path.name])
            assert len(row.split()) > 2, path
