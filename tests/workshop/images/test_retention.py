"""`image prune`: what stays and what goes, as values and with a real docker."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firesteel.workshop.images.retention import OwnImage, removable
from tests.conftest import run_firesteel
from tests.workshop.images.made_images import layer, write_docker_archive


def image(number: int, recipe: str | None = "a", day: int = 1) -> OwnImage:
    tag = f"firesteel/{recipe}:1.{number}-202611{day:02}-abc{number}" if recipe else None
    return OwnImage(f"sha256:{number:064}", tag, f"2026-11-{day:02}T00:00:00Z", 100)


NOTHING: frozenset[str] = frozenset()


def gone(
    images: list[OwnImage], used: frozenset[str] = NOTHING, named: frozenset[str] = NOTHING, keep: int = 2
) -> list[int]:
    return sorted(int(found.id[7:]) for found in removable(images, used, named, keep))


def test_the_newest_of_each_recipe_stay() -> None:
    images = [image(day, "a", day) for day in (1, 2, 3, 4)] + [image(9, "b", 1)]
    assert gone(images) == [1, 2]
    assert gone(images, keep=1) == [1, 2, 3]


def test_what_a_container_has_or_the_catalog_names_stays() -> None:
    images = [image(day, "a", day) for day in (1, 2, 3, 4)]
    assert gone(images, used=frozenset({images[0].id})) == [2]
    assert gone(images, named=frozenset({str(images[1].tag)})) == [1]


def test_refused_builds_go_unless_something_runs_on_them() -> None:
    images = [image(1, None), image(2, None)]
    assert gone(images) == [1, 2]
    assert gone(images, used=frozenset({images[0].id})) == [2]
    twin = OwnImage(images[0].id, "firesteel/a:1.1-20261101-abc", images[0].created, 100)
    assert gone([images[0], twin]) == [], "a build with equal inputs was proved later"


IMAGES = st.lists(
    st.builds(image, st.integers(1, 40), st.sampled_from(["a", "b", None]), st.integers(1, 28)),
    max_size=12,
    unique_by=lambda found: found.tag or found.id,
)


@given(IMAGES, st.sets(st.integers(1, 40)), st.integers(1, 4))
def test_nothing_in_use_goes_and_one_of_each_recipe_stays(
    images: list[OwnImage], used: set[int], keep: int
) -> None:
    ids = frozenset(f"sha256:{number:064}" for number in used)
    removed = removable(images, ids, frozenset(), keep)
    assert not {found.id for found in removed} & ids
    for recipe in {found.recipe for found in images} - {None}:
        assert [found for found in images if found.recipe == recipe and found not in removed]


def docker(*words: str) -> str:
    done = subprocess.run(["docker", *words], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_with_docker(docker_daemon: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The oldest is in use, the newest stays, one between goes; so does one that was refused."""
    monkeypatch.setenv("DOCKER_HOST", docker_daemon)
    home = tmp_path / "home"
    for number in range(4):
        archive = write_docker_archive(tmp_path / "image.tar", [layer({"file": b"%d" % number})])
        docker("load", "--input", str(archive))  # takes the name from the one before
        if number < 3:
            docker("tag", "test:1", f"firesteel/mine:1.{number}-2026111{number}-abc123{number}")
    refused = docker("images", "--no-trunc", "--quiet", "test:1")
    docker("rmi", "--no-prune", "test:1")
    (home / "builds" / "mine-1").mkdir(parents=True)
    (home / "builds" / "mine-1" / "image-id").write_text(refused)
    docker("create", "--name", "user", "firesteel/mine:1.0-20261110-abc1230", "/x")
    ran = run_firesteel(home, "image", "prune", "--keep", "1", "--yes", "--json")
    assert ran.code == 0 and ran.json["removed"], ran.err
    assert {found["tag"] for found in ran.json["images"]} <= {None, "firesteel/mine:1.1-20261111-abc1231"}
    left = docker("images", "--format", "{{.Tag}}").split()
    assert set(left) == {"1.2-20261112-abc1232", "1.0-20261110-abc1230"}
    docker("rm", "user")
