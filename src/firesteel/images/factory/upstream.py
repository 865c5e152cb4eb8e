"""The releases that a git remote or a registry has. Reads only."""

from __future__ import annotations

import os
import re
import subprocess

from firesteel.edge.docker.containers import last_line
from firesteel.edge.docker.registry import Registry, parse_reference
from firesteel.errors import FiresteelError
from firesteel.images.factory.policy import ImagePolicy, ReleaseSource, UpstreamRelease, wanted_releases

_GIT_S = 120
_REF = re.compile(r"^([0-9a-f]{40,64})\trefs/tags/([^\n]+?)(\^\{\})?$", re.M)


def upstream_releases(policy: ImagePolicy) -> tuple[UpstreamRelease, ...]:
    """What the policy wants of what is there, newest first; a registry's without their digests."""
    tags = git_tags(policy.releases.git) if policy.releases.git else registry_tags(policy.releases)
    return wanted_releases(policy, tags)


def git_tags(remote: str) -> dict[str, str]:
    """Commits by tag; of an annotated tag the commit that it points to."""
    try:
        done = subprocess.run(
            ["git", "ls-remote", "--tags", "--", remote],
            capture_output=True,
            text=True,
            timeout=_GIT_S,
            env={**os.environ, "GIT_TERMINAL_PROMPT": "0", "LC_ALL": "C"},
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise FiresteelError(
            f"git does not list the tags of {remote}: {error}", next=_again(remote)
        ) from error
    if done.returncode:
        raise FiresteelError(
            f"git does not list the tags of {remote}: {last_line(done.stderr)}", next=_again(remote)
        )
    found: dict[str, str] = {}
    for commit, tag, peeled in _REF.findall(done.stdout):
        if peeled or tag not in found:
            found[tag] = commit
    return found


def _again(remote: str) -> str:
    return f"git ls-remote --tags {remote}"


def registry_tags(source: ReleaseSource) -> dict[str, str]:
    address = parse_reference(source.registry or "")
    return dict.fromkeys(Registry(address).tags(), "")


def pinned_release(source: ReleaseSource, release: UpstreamRelease) -> UpstreamRelease:
    """With its digest, where only a registry knows it: a tag may move while it is built."""
    if release.pin or not source.registry:
        return release
    address = parse_reference(f"{source.registry}:{release.tag}")
    return UpstreamRelease(release.tag, release.version, Registry(address).manifest(release.tag)[1])
