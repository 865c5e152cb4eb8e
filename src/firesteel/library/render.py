"""Launches as text for other tools: a command to paste, compose, Kubernetes, systemd, quadlet, sparkrun.

A `Rendered` is the text with the files that it makes; `write_rendered` writes them.
"""

from __future__ import annotations

import asyncio
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from firesteel.edge.files import read_text, write_new
from firesteel.edge.home import find_home
from firesteel.errors import UsageError
from firesteel.launch import Ask
from firesteel.library.plans import catalog, host, propose, require_splittable
from firesteel.planner.advice import require_weights
from firesteel.planner.propose import Proposal
from firesteel.planner.rendered import CLUSTER_FORMS, FORMS, render_proposals
from firesteel.render import Cluster
from firesteel.render import docker as docker_run
from firesteel.run.endpoints import listening
from firesteel.values import Value, replace

if TYPE_CHECKING:
    from firesteel.hosts.cluster.rendered import NodeFile

FACTORY_FORMS = ("workflow", "timer", "kubernetes-runner")
"""Forms of a policy of `image watch`."""
ALL_FORMS = (*FORMS, *CLUSTER_FORMS, "dockerfile", *FACTORY_FORMS)


class Rendered(Value):
    form: str
    names: tuple[str, ...]
    text: str
    proposals: tuple[Proposal, ...] = ()
    nodes: tuple[NodeFile, ...] = ()
    """Over several hosts: a file for each of them."""
    files: Mapping[str, str] = {}
    """Texts by file name, if it is more than one file."""

    @property
    def exit_code(self) -> int:
        """The exit code of its worst launch: one may not fit, or be stopped by a rule."""
        return max((proposal.exit_code for proposal in self.proposals), default=0)


def render(
    models: Sequence[str],
    form: str = "docker",
    *,
    file: Path | None = None,
    ask: Ask | None = None,
    host_name: str | None = None,
    listen: str | None = None,
    service: str | None = None,
    tailnet: bool = False,
    active: str | None = None,
    claim: str | None = None,
) -> Rendered:
    """The launches of models, or of a service file, as one of ALL_FORMS.

    `ask`: the sizes, engine and so on of every model; a service file has its own. Of Kubernetes: `service`
    and `tailnet`, the name of the Service and whether MagicDNS has it; `active`, the model that runs, and
    `claim`, one claim for the weights of all.
    """
    if form == "dockerfile":
        return _dockerfile(models)
    if form in FACTORY_FORMS:
        return _factory(models, form)
    asks = _asks_of_file(models, file, form) if file else _asks(models, ask or Ask())
    cluster = Cluster(service, tailnet, active, claim)
    if file and form in CLUSTER_FORMS:
        cluster = _with_service_file(cluster, file)
    is_cluster = bool(service or tailnet or active or claim)
    _require_form(models, file, form, asks, listen, is_cluster=is_cluster)
    is_native = any(each.runtime == "native" for each in asks)  # its program is on this machine
    on = host(host_name or ("local" if is_native else "gb10"))
    proposals = tuple(propose(each, on)[0] for each in asks)
    for proposal in proposals:
        require_weights(proposal)
    names = tuple(proposal.name for proposal in proposals)
    if any(each.plan.launch.sparks > 1 for each in proposals) and form in _over_hosts():
        if len(proposals) > 1:
            raise UsageError("models over several Sparks are written one by one", next="name one MODEL")
        if form == "kubernetes":
            text = render_for_kubernetes(proposals[0], cluster)
            return Rendered(form, names, text, proposals)
        nodes = asyncio.run(render_by_node(proposals[0], form, listen=listen))
        text = "\n".join(each.text for each in nodes)
        return Rendered(form, names, text, proposals, nodes, {each.file: each.text for each in nodes})
    text = render_as(proposals, form, listen=listen, cluster=cluster)
    return Rendered(form, names, text, proposals)


def _over_hosts() -> tuple[str, ...]:
    """Forms that a launch over several hosts has its own text for."""
    from firesteel.hosts.cluster.rendered import BY_NODE

    return (*BY_NODE, "kubernetes")


def write_rendered(rendered: Rendered, output: Path) -> None:
    """To a file; what is several files, into this folder."""
    if not rendered.files:
        write_new(output, rendered.text)
        return
    # `.github/workflows` of a repository that has no workflow yet
    folder = output.parent if rendered.form in ("workflow", "kubernetes-runner") else output
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in rendered.files.items():
        write_new(folder / (output.name if folder is output.parent else name), text)


def _require_form(
    models: Sequence[str],
    file: Path | None,
    form: str,
    asks: Sequence[Ask],
    listen: str | None,
    *,
    is_cluster: bool,
) -> None:
    takes_several = form in CLUSTER_FORMS or (form == "compose" and file)
    if len(asks) > 1 and not takes_several:
        first = asks[0].name or asks[0].model or ""
        raise UsageError(f"--as {form} takes one MODEL", next=_command_line((first,), file, form))
    if form not in CLUSTER_FORMS and is_cluster:
        raise UsageError(
            "--service, --tailnet, --active and --claim are for Kubernetes",
            next=_command_line(models, file, "kubernetes"),
        )
    if listen and form in CLUSTER_FORMS:
        again = f"{_command_line(models, file, form)} --tailnet"
        raise UsageError("--listen is not for Kubernetes; the Service decides who can reach it", next=again)


def _asks(models: Sequence[str], ask: Ask) -> list[Ask]:
    if not models:
        raise UsageError("which MODEL?", next="firesteel models, to list their names")
    require_splittable(ask.sparks)
    return [replace(ask, model=model) for model in models]


def _asks_of_file(models: Sequence[str], file: Path, form: str) -> list[Ask]:
    from firesteel.service_file import asks, read_service_file, with_ports  # loads PyYAML

    hint = "firesteel models, to list models that need no file"
    content = read_service_file(str(file), read_text(file, next=hint))
    known = with_ports(content, asks(content))
    unknown = [name for name in models if name not in known]
    if unknown or not known:
        missing = f"`{', '.join(unknown)}`" if unknown else "any model"
        raise UsageError(
            f"{file} does not start {missing}",
            next=_command_line((next(iter(known)),), file, form) if known else hint,
        )
    return [known[name] for name in models or known]


def _with_service_file(cluster: Cluster, file: Path) -> Cluster:
    """With the names of its models, and those that it does not start here."""
    from firesteel.service_file import read_service_file  # loads PyYAML

    models = read_service_file(str(file), read_text(file)).models
    return replace(
        cluster,
        aliases={name: tuple(entry.aliases) for name, entry in models.items()},
        elsewhere=tuple(name for name, entry in models.items() if entry.node or not entry.recipe),
    )


def _command_line(models: Sequence[str], file: Path | None, form: str) -> str:
    """A complete command, to type instead of this one."""
    from_file = ("-f", str(file)) if file else ()
    return shlex.join(("firesteel", "render", *models, *from_file, "--as", form))


def _dockerfile(models: Sequence[str]) -> Rendered:
    from firesteel.edge.records import load_image_recipe  # recipes of images load more schemas
    from firesteel.render.dockerfile import dockerfile

    if len(models) != 1:
        raise UsageError("--as dockerfile takes one recipe for an image", next="firesteel image build --list")
    name, recipe = load_image_recipe(models[0])
    return Rendered("dockerfile", (name,), dockerfile(name, recipe))


def _factory(models: Sequence[str], form: str) -> Rendered:
    """`image watch` by itself: a workflow, two units, or the objects of a runner."""
    from firesteel.render import factory
    from firesteel.workshop.images.factory.policy import read_policies  # registries

    if len(models) > 1:
        raise UsageError(f"--as {form} takes one policy", next=f"firesteel render factory.yaml --as {form}")
    path = Path(models[0]) if models else find_home().root / "factory.yaml"
    policies = read_policies(path)
    job = factory.FactoryJob(str(path), tuple(policies), min(policy.every for policy in policies.values()))
    if form == "timer":
        job = replace(job, file=str(path.absolute()))
        units = factory.timer_units(job, (sys.executable, "-P", "-m", "firesteel"), str(find_home().root))
        text = "\n".join(f"# {name}\n{unit}" for name, unit in units.items())
        return Rendered(form, tuple(policies), text, files=units)
    text = factory.workflow(job) if form == "workflow" else factory.runner_manifests(job)
    return Rendered(form, tuple(policies), text, files={form: text})


# --- proposals as text ---


def render_as(
    proposals: Proposal | Sequence[Proposal],
    form: str = "docker",
    *,
    listen: str | None = None,
    cluster: Cluster | None = None,
) -> str:
    """The launch as text: docker, compose, systemd, quadlet, sparkrun, kubernetes or kubernetes-swap.

    Kubernetes and compose take several proposals. `listen`: an address other than loopback, with a key.
    """
    chosen = list(proposals) if isinstance(proposals, Sequence) else [proposals]
    if form != "sparkrun":  # it mounts its own folders
        chosen = [_with_folders(proposal) for proposal in chosen]
    if listen:
        chosen = [listening(proposal, listen) for proposal in chosen]
    return render_proposals(chosen, form, catalog().images, cluster)


async def render_by_node(
    proposal: Proposal, form: str = "docker", *, listen: str | None = None
) -> tuple[NodeFile, ...]:
    """A launch over several hosts as a file for each: docker, compose, systemd or quadlet.

    With the addresses of the nodes that `cluster add` knows, where there are enough; else the usual ones.
    """
    from firesteel.hosts.cluster import rendered
    from firesteel.hosts.cluster.up import rank_hosts_for  # ssh

    hosts = await rank_hosts_for(find_home(), proposal.plan.launch.sparks)
    chosen = _with_folders(proposal)
    chosen = listening(chosen, listen) if listen else chosen
    program, rpc = proposal.plan.launch.program, ""
    if program and proposal.plan.launch.engine == "llamacpp":
        from firesteel.hosts.cluster.ranks import find_rpc_program

        found = find_rpc_program(program)
        rpc = f"{found.node_folder}/{found.path.name}"
    return rendered.render_by_node(chosen, hosts, form, catalog().images, rpc)


def render_for_kubernetes(proposal: Proposal, cluster: Cluster | None = None) -> str:
    """A launch over several hosts as a LeaderWorkerSet."""
    from firesteel.hosts.cluster import rendered

    hosts, chosen = rendered.usual_hosts(proposal.plan.launch.sparks), _with_folders(proposal)
    return rendered.render_for_kubernetes(chosen, hosts, catalog().images, cluster)


def _with_folders(proposal: Proposal) -> Proposal:
    """The proposal with the folders of this user, as `up` would mount them."""
    from firesteel.edge.hub.cache import find_store
    from firesteel.run.spec import with_native_launch, with_user_folders

    if proposal.plan.launch.program:
        return with_native_launch(proposal, find_home())
    return with_user_folders(proposal, find_home(), find_store(find_home()).root, Path.home())


def docker(proposal: Proposal) -> str:
    """The proposal's launch as a `docker run` command to paste, without comments."""
    return docker_run(proposal.plan.launch)
