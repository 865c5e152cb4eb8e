"""docs/images.md: its commands run as written, and it names every trap."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner

from firesteel.cli.main import firesteel
from firesteel.workshop.images import inspect
from tests.workshop.images.made_images import VLLM_CONFIG, layer, vllm_files, write_layout, write_oci_archive

PAGE = (Path(__file__).parents[3] / "docs" / "images.md").read_text()
BLOCKS = re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL)
COMMANDS = [shlex.split(line, comments=True) for block in BLOCKS for line in block.splitlines()]
(POLICY,) = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_a_command_of_the_page(words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FIRESTEEL_HOME", str(tmp_path / "home"))
    write_oci_archive(Path("image.tar"), write_layout(Path("layout"), [layer(vllm_files())], **VLLM_CONFIG))
    for policy in (Path("factory.yaml"), tmp_path / "home" / "factory.yaml"):
        policy.parent.mkdir(exist_ok=True)
        policy.write_text(POLICY)
    assert words[0] == "firesteel"
    words = [word.replace("~", str(tmp_path)) for word in words[1:]]
    ran = CliRunner().invoke(firesteel, words, standalone_mode=False)
    assert ran.exception is None and not ran.return_value, ran.output


def test_the_page_names_every_trap() -> None:
    source = Path(inspect.__file__).read_text()
    slugs = set(re.findall(r'(?:ImageProblem\(\s*|, )"([a-z0-9]+(?:-[a-z0-9]+)+)",', source))
    assert len(slugs) > 10
    assert {slug for slug in slugs if f"`{slug}`" not in PAGE} == set()
