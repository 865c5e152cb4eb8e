"""What `up`, `verify`, `logs`, `down`, `pull` and `upgrade` print with `--json`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from msgspec import field

from firesteel.library.documents.document import Document
from firesteel.library.documents.plans import RequestsJson, TermsJson, requests_of
from firesteel.planner.propose import MeasuredCalls
from firesteel.run.prune import UnusedFile
from firesteel.run.service import NodeStatus
from firesteel.run.verify.checks import CheckResult
from firesteel.units import Band

if TYPE_CHECKING:
    from firesteel.launch import Step
    from firesteel.library.run import NodeUp
    from firesteel.planner.propose import Proposal
    from firesteel.run.events import ServiceReady
    from firesteel.run.report import Report


class ComparedJson(Document):
    what: str
    unit: str
    planned: Band
    measured: float
    is_within: bool = field(name="within")


class UpJson(Document, kw_only=True, tag_field="document", tag="firesteel.up/1"):
    """`firesteel up --json`; a failed check of level `gate` fails the launch, a `note` does not"""

    name: str
    url: str
    model: str
    engine: str
    version: str | None
    is_verified: bool = field(name="verified")
    already_running: bool = False
    checks: tuple[CheckResult, ...]
    compared: tuple[ComparedJson, ...]
    start_s: float
    first_token_ms: float
    log: str
    nodes: tuple[NodeStatus, ...] = ()
    """Of a service over several hosts: each of them."""
    terms: TermsJson | None = None
    """Of a model in the catalog."""
    requests: RequestsJson | None = None
    """How the model should be asked; null: its recipe does not say."""


class NodeUpJson(Document):
    """A model that a `node` of the service file serves."""

    name: str
    url: str
    verified: bool


class UpFileJson(Document, tag_field="document", tag="firesteel.up-file/1"):
    """`firesteel up -f FILE --json`"""

    reports: tuple[UpJson, ...]
    nodes: dict[str, tuple[NodeUpJson, ...]] = {}
    """What other hosts serve, by node."""


class StepJson(Document):
    host: str
    command: tuple[str, ...]
    env: Mapping[str, str]
    why: str
    undo: tuple[str, ...] | None
    expects: str


class UpDryRunJson(Document, tag_field="document", tag="firesteel.up-dry-run/1"):
    """`firesteel up --dry-run --json`"""

    name: str
    steps: tuple[StepJson, ...]


class VerifyJson(Document, tag_field="document", tag="firesteel.verify/1"):
    """`firesteel verify --json`; a failed check of level `gate` fails the whole, a `note` does not"""

    name: str
    verified: bool
    checks: tuple[CheckResult, ...]
    calls: MeasuredCalls | None
    """With `--agent`: with how many tools, and how deep in a conversation, calls were parsed."""


class DownJson(Document, tag_field="document", tag="firesteel.down/1"):
    """`firesteel down --json`"""

    done: tuple[str, ...]


class PullJson(Document, tag_field="document", tag="firesteel.pull/1"):
    """`firesteel pull MODEL --json`"""

    done: tuple[str, ...]


class PullPruneJson(Document, tag_field="document", tag="firesteel.pull-prune/1"):
    """`firesteel pull --prune --json`"""

    waste: tuple[UnusedFile, ...]
    bytes: int
    removed: bool
    """False: nothing was removed, or not everything could be."""
    left: tuple[str, ...]
    """Paths that could not be removed because they belong to another user."""


def up_json(
    report: Report,
    already_running: bool,
    proposal: Proposal | None = None,
    nodes: tuple[NodeStatus, ...] = (),
) -> UpJson:
    return UpJson.of(
        report,
        already_running=already_running,
        nodes=nodes,
        terms=proposal.model if proposal else None,
        requests=requests_of(proposal.recipe if proposal else None),
    )


def up_file_json(
    started: Sequence[ServiceReady],
    proposals: Sequence[Proposal],
    on_nodes: Mapping[str, tuple[NodeUp, ...]],
) -> UpFileJson:
    reports = (
        up_json(ready.report, ready.already, proposal)
        for ready, proposal in zip(started, proposals, strict=True)
    )
    return UpFileJson.of(reports=reports, nodes=on_nodes)


def steps_json(name: str, steps: Iterable[Step]) -> UpDryRunJson:
    rows = (
        StepJson.of(step, step.command, command=step.command.argv, undo=step.undo.argv if step.undo else None)
        for step in steps
    )
    return UpDryRunJson.of(name=name, steps=tuple(rows))
