"""What `verify` verifies: a running service with the expectations of its start, or any OpenAI endpoint."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable

from firesteel.edge.home import Home
from firesteel.edge.http.engine_client import (
    calls_tools,
    is_healthy,
    offered_count,
    offered_models,
    status,
)
from firesteel.errors import FiresteelError, HostNotReady, ServerNotReady, UsageError
from firesteel.launch import EngineName, Task
from firesteel.run.endpoints import KEY_VARIABLES
from firesteel.run.proofs import forget_proof
from firesteel.run.service import Service, api_key, death, last_lines
from firesteel.run.verify.expected import Expected, stored_expected
from firesteel.run.verify.verify import Verification, verify
from firesteel.values import Value, replace

_LOG_LINES = 100_000
_ENGINES: dict[str, EngineName] = {"vllm": "vllm", "sglang": "sglang", "llamacpp": "llamacpp"}
"""By what engines say in `owned_by` of `/v1/models`."""


class VerifyTarget(Value):
    """A server to verify, and what is known about it."""

    name: str
    url: str
    model: str
    expected: Expected
    key: str | None = None
    read_log: Callable[[], str] | None = None
    on_failure: Callable[[], None] | None = None

    async def verify(self, *, thorough: bool = True) -> AsyncIterator[str | Verification]:
        """What is checked now; the last item is the Verification."""
        events = verify(
            self.url, self.model, self.expected, key=self.key, read_log=self.read_log, thorough=thorough
        )
        async for event in events:
            if isinstance(event, str):
                yield event
            elif isinstance(event, Verification):
                if self.on_failure and not event.is_good:
                    self.on_failure()
                error = self._unanswered(event) if event.is_unanswered else None
                yield replace(event, name=self.name, error=error)

    def _unanswered(self, verification: Verification) -> HostNotReady:
        """The error for a server that stopped answering: nothing is known about its answers then."""
        last = verification.failed[-1]
        what = f"{self.name} could not be verified ({last.name}: {last.observed})"
        if self.read_log:
            return HostNotReady(what, next="firesteel ps")
        return ServerNotReady(what, next=f"curl -i {self.url}/v1/models")


async def target_of_service(home: Home, service: Service) -> VerifyTarget:
    """If it fails, the gateway proves it in full the next time."""
    spec, log = service.spec, service.log
    if service.phase == "dead":
        raise HostNotReady(f"{service.name} is dead: {death(service.state)}", next=spec.again)
    if not await is_healthy(spec.url, timeout_s=10):
        raise HostNotReady(
            f"{service.name} runs but does not answer at {spec.url}/health within 10 s",
            next=f"firesteel logs {service.name}, then firesteel down {service.name}",
        )

    def read_log() -> str:
        return "\n".join(last_lines(log, _LOG_LINES)) if log.exists() else ""

    return VerifyTarget(
        service.name, spec.url, spec.model, stored_expected(service.folder), api_key(spec), read_log,
        lambda: forget_proof(home, service.name),
    )  # fmt: skip


async def target_at_url(
    base: str,
    model: str | None = None,
    key: str | None = None,
    *,
    task: Task = "chat",
    takes: tuple[str, ...] = (),
) -> VerifyTarget:
    """`base`: without `/v1`. Without a model, the only one that the server has. `takes`: beside text."""
    models = await offered_models(base, key=key)
    names = [str(row["id"]) for row in models if isinstance(row.get("id"), str)]
    chosen = model or (names[0] if len(names) == 1 else None)
    if chosen is None:
        raise await _no_model(base, names, key)
    # A server that answers without the key never checked it, so the key proves nothing about the server.
    is_open = key is not None and await status(f"{base}/v1/models", timeout_s=10) == 200
    row = next((row for row in models if row.get("id") == chosen), {})
    expected = Expected(
        engine=_ENGINES.get(str(row.get("owned_by")).lower()),
        parameters=offered_count(row, "n_params"),
        context=offered_count(row, "max_model_len", "n_ctx"),
        task=task,
        takes=takes,
        tool_parser="its own" if task == "chat" and await calls_tools(base, key=key) else None,
    )
    return VerifyTarget(chosen, base, chosen, expected, None if is_open else key)


async def _no_model(base: str, names: list[str], key: str | None) -> FiresteelError:
    if names:
        shown = ", ".join(names[:8])
        return UsageError(f"{base} serves several models: {shown}", next=f"add --model {names[0]}")
    code = await status(f"{base}/v1/models", timeout_s=10, key=key)
    if code in (401, 403):
        what = "rejects the key" if key else "asks for a key"
        return ServerNotReady(
            f"{base} {what} (HTTP {code})", next=f"export {KEY_VARIABLES[0]}=..., then run it again"
        )
    answer = f"answers HTTP {code}" if code else "does not answer"
    return ServerNotReady(f"{base}/v1/models {answer}", next=f"curl -i {base}/v1/models")
