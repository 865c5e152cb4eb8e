"""Verify a running server with questions that a broken engine answers wrongly.

HTTP 200 proves nothing: with a wrong kernel an engine answers fluently, in nonsense. So the server gets the
requests that users will send, and `checks` compares every answer with what the plan expects (`Expected`). The
server is a running service, with the expectations of its start, or any OpenAI endpoint: a `VerifyTarget`.

    async for item in verify("http://127.0.0.1:8000", "smollm2", expected):
        ...  # str: progress; CheckResult: one result; Verification: all results, at the end
"""

from __future__ import annotations

import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import date

from firesteel.edge.home import Home
from firesteel.edge.http import engine_client
from firesteel.edge.http.answer import Answer, count
from firesteel.edge.http.engine_client import (
    calls_tools,
    is_healthy,
    offered_count,
    offered_models,
    status,
)
from firesteel.edge.records import save_measured_calls
from firesteel.errors import FiresteelError, HostNotReady, ServerNotReady, UsageError
from firesteel.launch import EngineName, Task
from firesteel.planner.propose import MeasuredCalls
from firesteel.run.endpoints import KEY_VARIABLES
from firesteel.run.service import Service, after_death, api_key, death, forget_proof, lines_of_last_start
from firesteel.run.verify import agent, questions
from firesteel.run.verify.checks import Cause, CheckResult
from firesteel.run.verify.expected import Expected, stored_expected
from firesteel.run.verify.session import VerifySession
from firesteel.values import Value, replace

_BUSY = frozenset({429, 502, 503, 504})
"""Overloaded, or a proxy without an engine behind it: the model did not answer."""
_DEEP_S = 1800
_USUAL_TOKENS_PER_S = 5.0
"""From this speed on the usual time limits are enough."""


class VerifyBudget(Value):
    """Time limits for everything and for one answer. A model of 120 billion parameters needs a minute."""

    total_s: float = 120
    request_s: float = 90

    @classmethod
    def of(cls, expected: Expected, *, deep: bool = False) -> VerifyBudget:
        """`deep`: or as an agent. Longer on a host that is planned to be slow."""
        planned = expected.plan.decode_tokens_per_s
        slowness = max(1.0, _USUAL_TOKENS_PER_S / max(planned.low, 0.01)) if planned else 1.0
        total_s = _DEEP_S if deep else cls().total_s
        return cls(total_s * slowness, cls().request_s * slowness)


class Verification(Value):
    checks: tuple[CheckResult, ...]
    texts: tuple[Answer, ...] = ()
    """The longer streamed answers, which are also the first speed measurements."""
    name: str = ""
    """Of the service, or of the model at a URL."""
    calls: MeasuredCalls | None = None
    """What an agent's tool calls came to, where that was asked for."""
    error: HostNotReady | None = None
    """The server stopped answering, so that nothing is known about its answers."""

    @property
    def is_good(self) -> bool:
        return not self.failed

    @property
    def failed(self) -> tuple[CheckResult, ...]:
        return tuple(check for check in self.checks if check.fails_launch)

    @property
    def is_unanswered(self) -> bool:
        """No answer was wrong, but some never came: this proves nothing."""
        return bool(self.failed) and all(check.cause == "silent" for check in self.failed)


class _Step(Value):
    name: str
    progress: str
    run: Callable[[VerifySession], Awaitable[list[CheckResult]]]
    is_first: bool = False
    """If it cannot be carried out, the steps after it make no sense."""
    is_free: bool = False
    """It sends no prompt, so it runs even when the time is up."""


async def verify(
    url: str,
    model: str,
    expected: Expected | None = None,
    *,
    key: str | None = None,
    read_log: Callable[[], str] | None = None,
    budget: VerifyBudget | None = None,
    thorough: bool = True,
    deep: bool = False,
    as_agent: bool = False,
    seed: int | None = None,
) -> AsyncIterator[str | CheckResult | Verification]:
    """`read_log` returns the engine's log so far, where that is available. A start is not `thorough`: it
    leaves out what takes longer and is a fault of the API, not of this machine. `deep` adds answers of
    hundreds of tokens, all planned users at once, and the whole context; `as_agent` adds tools as agents send
    them. `seed`: of the prompts."""
    expected = expected or Expected()
    budget = budget or VerifyBudget.of(expected, deep=deep or as_agent)
    session = VerifySession(
        url, model, expected, key, read_log, time.monotonic() + budget.total_s, budget.request_s,
        random.SystemRandom().randrange(10**6, 10**9) if seed is None else seed,
    )  # fmt: skip
    results: list[CheckResult] = []
    async for item in _run(session, _steps(session, thorough or deep, deep, as_agent)):
        if isinstance(item, CheckResult):
            results.append(item)
        yield item
    yield Verification(tuple(results), tuple(session.texts), calls=session.calls)


async def _run(session: VerifySession, steps: list[_Step]) -> AsyncIterator[str | CheckResult]:
    for step in steps:
        if session.left_s <= 0 and not step.is_free:
            yield CheckResult(step.name, True, "skipped: the time limit was reached", "note")
            continue
        yield step.progress
        try:
            results = await step.run(session)
        except FiresteelError as error:
            yield CheckResult(step.name, False, error.what, cause=_cause(error))
            if step.is_first or not isinstance(error, engine_client.EngineRefused):
                return  # every further request would only wait for its timeout
            continue
        for result in results:
            yield result


def _cause(error: FiresteelError) -> Cause:
    if isinstance(error, engine_client.EngineRefused):
        return "silent" if error.status in _BUSY else "refused"
    # `engine_client` chains what went wrong: these three come from an answer that is not JSON as expected.
    cause = error.__cause__
    has_answered = cause is None or isinstance(cause, (ValueError, TypeError, AttributeError))
    return "wrong" if has_answered else "silent"


def _steps(session: VerifySession, thorough: bool, deep: bool, as_agent: bool) -> list[_Step]:
    expected = session.expected
    if expected.task == "embeddings":
        return [_Step("embeddings", "embedding pairs of sentences", questions.embeddings, is_first=True)]
    if expected.task == "rerank":
        return [_Step("rerank", "ranking three documents", questions.rerank, is_first=True)]
    ask, ask_api = questions, questions
    steps = [
        _Step("speaks", "asking what 2+2 is", ask.two_and_two, is_first=True),
        _Step("no garbage", "asking for a paragraph, with and without streaming", ask.text, is_first=True),
        _Step("conversation", "asking something else after it", ask_api.conversation),
        _Step("stop", "asking for it with a stop sequence", ask.stop),
        _Step("max_tokens", f"asking for {ask.FEW_TOKENS} tokens of it", ask.few_tokens),
        _Step("logprobs", "asking for its log probabilities", ask_api.logprobs),
        _Step("usage", "counting its tokens", ask.usage),
    ]
    if expected.reasoning_parser:
        steps.append(_Step("reasoning split", "asking it to think", ask.thoughts))
    else:
        steps.append(_Step("facts", "asking for facts", ask.facts))
    if expected.tool_parser:
        steps.append(_Step("tool call", "asking for a tool call", ask.tool_call))
    if expected.requests:
        steps.append(_Step("recipe's settings", "asking with the recipe's own settings", ask.recipe_settings))
    steps.append(_Step("long prompt", "asking for one fact in a long prompt", ask.long_prompt))
    if not thorough:
        steps.append(_Step("JSON", "asking for JSON", ask_api.json_at_start))
    # Late, so that what changes after a dozen requests is seen as well.
    steps.append(_Step("parallel requests", "asking two questions at once", ask_api.parallel))
    if "image" in expected.takes:
        steps.append(_Step("image", "showing it two pictures", questions.images))
    if "audio" in expected.takes:
        steps.append(_Step("sound", "playing it two words", questions.sounds))
    if thorough:
        if expected.tool_parser or expected.engine != "llamacpp":  # which says whether it can
            steps.append(_Step("tool call", "demanding a tool call", ask_api.demanded_tool_call))
        steps += [
            _Step("JSON", "asking for JSON", ask_api.exact_json),
            _Step("system prompt", "asking with a system prompt, and in Unicode", ask_api.prompt_parts),
            _Step("samples differ", "asking at a high temperature", ask_api.samples),
            _Step("parallel requests", "asking all of them at once", ask_api.several_at_once),
        ]
    if deep:
        steps += [
            _Step("all users", "asking for long answers, alone and all users at once", ask_api.all_users),
            _Step("whole context", "asking for three facts in a full context", ask_api.whole_context),
        ]
    if as_agent:
        steps += [
            _Step("agent tools", "asking for calls with up to 60 tools", agent.agent_tools),
            _Step("agent turns", "asking for calls up to 40 turns deep", agent.agent_turns),
            _Step("agent results", "giving it long, wrong and empty results", agent.agent_results),
        ]
    if expected.adapters:
        steps.append(_Step("adapters", "asking each adapter, and the base model", ask_api.adapters))
        if deep:
            steps.append(_Step("adapters at once", "asking all adapters at once", ask_api.adapters_at_once))
    steps.append(_Step("protocol", "comparing all answers", ask_api.all_answers, is_free=True))
    if session.key:
        steps.append(_Step("key", "asking without the key", ask.key, is_free=True))
    steps.append(_Step("engine", "reading the engine's log and metrics", ask.engine_reports, is_free=True))
    return steps


# --- what is verified ---

_LOG_LINES = 100_000
_ENGINE_OF_OWNER: dict[str, EngineName] = {"vllm": "vllm", "sglang": "sglang", "llamacpp": "llamacpp"}
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
    on_calls: Callable[[MeasuredCalls], None] | None = None
    """Records what was measured."""

    async def verify(
        self, *, thorough: bool = True, deep: bool = False, as_agent: bool = False
    ) -> AsyncIterator[str | Verification]:
        """What is checked now; the last item is the Verification."""
        events = verify(
            self.url,
            self.model,
            self.expected,
            key=self.key,
            read_log=self.read_log,
            thorough=thorough,
            deep=deep,
            as_agent=as_agent,
        )
        async for event in events:
            if isinstance(event, str):
                yield event
            elif isinstance(event, Verification):
                if self.on_failure and not event.is_good:
                    self.on_failure()
                if self.on_calls and event.calls:
                    self.on_calls(event.calls)
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
        raise HostNotReady(f"{service.name} is dead: {death(service.state)}", next=after_death(service))
    if not await is_healthy(spec.url, timeout_s=10):
        raise HostNotReady(
            f"{service.name} runs but does not answer at {spec.url}/health within 10 s",
            next=f"firesteel logs {service.name}, then firesteel down {service.name}",
        )

    def read_log() -> str:
        return "\n".join(lines_of_last_start(log, _LOG_LINES)) if log.exists() else ""

    def record(calls: MeasuredCalls) -> None:
        seen = date.today().isoformat()
        save_measured_calls(home, replace(calls, key=spec.launch, seen=seen))

    return VerifyTarget(
        service.name, spec.url, spec.model, stored_expected(service.folder), api_key(spec), read_log,
        lambda: forget_proof(home, service.name), record if spec.launch else None,
    )  # fmt: skip


async def target_at_url(
    base: str,
    model: str | None = None,
    key: str | None = None,
    *,
    task: Task = "chat",
    takes: tuple[str, ...] = (),
) -> VerifyTarget:
    """`base`: without `/v1`. Without a model, the only one that the server has. `takes`: besides text."""
    models = await offered_models(base, key=key)
    names = [str(row["id"]) for row in models if isinstance(row.get("id"), str)]
    chosen = model or (names[0] if len(names) == 1 else None)
    if chosen is None:
        raise await _no_model(base, names, key)
    # A server that answers without the key never checked it, so the key proves nothing about the server.
    is_open = key is not None and await status(f"{base}/v1/models", timeout_s=10) == 200
    row = next((row for row in models if row.get("id") == chosen), {})
    props = await engine_client.props(base, key=key)
    expected = Expected(
        engine=_ENGINE_OF_OWNER.get(str(row.get("owned_by")).lower()),
        parameters=offered_count(row, "n_params"),
        context=offered_count(row, "max_model_len", "n_ctx"),
        users=count(props, "total_slots"),
        embedding_size=offered_count(row, "n_embd") if task == "embeddings" else None,
        task=task,
        takes=takes,
        tool_parser="its own" if task == "chat" and calls_tools(props) else None,
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
