"""Every row of the data against its own lines, real failed starts, and logs that try to mislead."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firesteel import values
from firesteel.engines.diagnosis import Diagnosis, diagnose
from firesteel.engines.logs import (
    MAX_LINE,
    CauseRow,
    CausesSchema,
    NoiseRow,
    cause_rows,
    engine_rows,
    noise_rows,
)
from firesteel.engines.schema.releases import flag_arity
from firesteel.errors import InvalidFile
from firesteel.launch import EngineName, Runtime
from firesteel.values import replace

LOGS = Path(__file__).parent / "logs"
HITS = [
    pytest.param(row, line, id=f"{row.id}-{n}") for row in cause_rows() for n, line in enumerate(row.hits)
]
MISSES = [
    pytest.param(row, line, id=f"{row.id}-{n}") for row in cause_rows() for n, line in enumerate(row.misses)
]
NOISE = [
    pytest.param(row, line, id=f"{row.id}-{n}") for row in noise_rows() for n, line in enumerate(row.hits)
]


def ids(diagnosis: Diagnosis) -> list[str]:
    return [cause.id for cause in (*diagnosis.causes, *diagnosis.follows, *diagnosis.notes)]


@pytest.mark.parametrize(("row", "line"), HITS)
def test_a_line_is_known(row: CauseRow, line: str) -> None:
    """As itself, and as an engine prints it among others; a row that needs an earlier line has both."""
    engine = row.engines[0] if row.engines else None
    assert ids(diagnose(line, engine)) == [row.id]
    among = f"starting\n(EngineCore pid=1) ERROR 11-02 10:00:01 [core.py:1] {line}\nbye\n"
    diagnosis = diagnose(among, engine)
    assert ids(diagnosis) == [row.id]
    assert [cause.line for cause in (*diagnosis.causes, *diagnosis.follows, *diagnosis.notes)] == [
        2 + line.count("\n")
    ]


@pytest.mark.parametrize(("row", "line"), MISSES)
def test_a_line_of_another_kind_is_not_matched(row: CauseRow, line: str) -> None:
    assert row.id not in ids(diagnose(line))


@pytest.mark.parametrize(("row", "line"), NOISE)
def test_noise_is_folded(row: NoiseRow, line: str) -> None:
    diagnosis = diagnose(line)
    assert [cause.id for cause in diagnosis.folded] == [row.id]
    assert not diagnosis.causes and diagnosis.state != "failed"


def test_ids_are_unique() -> None:
    names = [row.id for row in cause_rows()] + [row.id for row in noise_rows()]
    assert len(names) == len(set(names))


def test_every_placeholder_is_captured() -> None:
    """No row leaves a `?` in the text about its own lines."""
    for row in cause_rows():
        for line in row.hits:
            for cause in diagnose(line, row.engines[0] if row.engines else None).causes:
                assert "?" not in f"{cause.says} {cause.next}", row.id


def test_a_context_that_does_not_fit_in_a_real_log() -> None:
    diagnosis = diagnose((LOGS / "vllm-0.32.0-cpu-kv-too-small.log").read_text())
    assert (diagnosis.engine, diagnosis.version, diagnosis.state) == ("vllm", "0.32.0", "failed")
    assert diagnosis.cause and diagnosis.cause.id == "context-larger-than-cache"
    assert "2688 tokens fit" in diagnosis.cause.says
    assert diagnosis.cause.next and diagnosis.cause.next.startswith("--max-model-len 2688")
    assert diagnosis.cause.line == 80 and diagnosis.cause.count == 2
    assert [cause.id for cause in diagnosis.follows] == ["engine-core-failed"]
    assert diagnosis.reached and diagnosis.reached.stage == "kv"


@pytest.mark.parametrize(
    ("log", "cause"),
    [
        ("vllm-0.32.0-cpu-bad-flag.log", "unknown-flag"),
        ("vllm-0.32.0-cpu-port-in-use.log", "some-port-in-use"),
        ("llamacpp-11549-cut-off.log", "gguf-broken"),
        ("llamacpp-11549-unknown-architecture.log", "gguf-architecture-unknown"),
        ("llamacpp-11549-no-file.log", "gguf-not-found"),
        ("llamacpp-11549-port-in-use.log", "llamacpp-port-in-use"),
    ],
)
def test_other_real_failures(log: str, cause: str) -> None:
    diagnosis = diagnose((LOGS / log).read_text())
    assert diagnosis.state == "failed" and [cause.id for cause in diagnosis.causes] == [cause]


@pytest.mark.parametrize(
    ("log", "cause"),
    [
        ("vllm-0.26.0-bad-config", "config-not-json"),
        ("vllm-0.26.0-broken-shard", "weights-broken"),
        ("vllm-0.26.0-config-contradicts-itself", "config-contradicts-itself"),
        ("vllm-0.26.0-context-too-long", "context-longer-than-model"),
        ("vllm-0.26.0-killed-engine-core", "engine-killed"),
        ("vllm-0.26.0-kv-too-small", "context-larger-than-cache"),
        ("vllm-0.26.0-less-free-than-asked", "less-free-than-asked"),
        ("vllm-0.26.0-missing-file", "weights-not-there"),
        ("vllm-0.26.0-no-flashinfer", "attention-backend-not-installed"),
        ("vllm-0.26.0-no-gpu", "no-gpu-seen"),
        ("vllm-0.26.0-no-memory", "gpu-out-of-memory"),
        ("vllm-0.26.0-other-shape", "weights-of-another-shape"),
        ("vllm-0.26.0-port-taken", "some-port-in-use"),
        ("vllm-0.26.0-wrong-flag", "unknown-flag"),
        ("llamacpp-11434-bad-template", "llamacpp-chat-template"),
        ("llamacpp-11434-broken-file", "gguf-broken"),
        ("llamacpp-11434-missing-file", "gguf-not-found"),
        ("llamacpp-11434-no-memory", "llamacpp-out-of-memory"),
        ("llamacpp-11434-port-taken", "llamacpp-port-in-use"),
        ("llamacpp-11434-quantized-cache", "llamacpp-quantized-cache"),
        ("llamacpp-11434-unknown-architecture", "gguf-architecture-unknown"),
        ("llamacpp-11434-wrong-flag", "llamacpp-unknown-flag"),
    ],
)
def test_failures_provoked_on_a_gpu(log: str, cause: str) -> None:
    """Recorded on an H200 by `benchmarks/gpu/provoke_failures.py`."""
    diagnosis = diagnose((LOGS / "gpu" / "failures" / f"{log}.log").read_text())
    assert diagnosis.state == "failed"
    assert diagnosis.cause and diagnosis.cause.id == cause


@pytest.mark.parametrize(
    ("log", "engine"), [("vllm-0.32.0-cpu.log", "vllm"), ("llamacpp-11549.log", "llamacpp")]
)
def test_real_healthy_starts(log: str, engine: str) -> None:
    diagnosis = diagnose((LOGS / log).read_text())
    assert (
        diagnosis.state == "healthy"
        and diagnosis.engine == engine
        and not diagnosis.causes
        and not diagnosis.suspect
    )


AUTOTUNED = """\
(EngineCore pid=7) INFO 11-02 10:00:01 [core.py:90] Initializing a V1 LLM engine (v0.26.0) with config: x
(EngineCore pid=7) flashinfer.jit: [Autotuner]: Skipping tactic <X> [1], due to failure while profiling: x
Traceback (most recent call last):
  File "/x/flashinfer/autotuner.py", line 10, in run
    raise RuntimeError("x")
RuntimeError: CUDA error: an illegal memory access was encountered
"""


def test_the_traceback_of_a_tuner_is_not_the_cause() -> None:
    diagnosis = diagnose(AUTOTUNED + "INFO:     Application startup complete.\n")
    assert diagnosis.state == "healthy" and not diagnosis.causes and not diagnosis.suspect
    assert [(cause.id, cause.count) for cause in diagnosis.folded] == [("autotuner-skips", 1)]


def test_an_error_after_that_traceback_is_the_cause() -> None:
    diagnosis = diagnose(
        AUTOTUNED + "torch.AcceleratorError: CUDA error: an illegal memory access was encountered\n"
    )
    assert [cause.id for cause in diagnosis.causes] == ["illegal-memory-access"] and diagnosis.causes[
        0
    ].line == 7


def test_an_error_right_after_a_harmless_line_is_not_folded() -> None:
    text = "[Autotuner]: Skipping tactic <X> [1], due to failure while profiling: x\nodd.OddError: real\n"
    assert diagnose(text).suspect == (2, "odd.OddError: real")


def test_a_root_comes_before_a_trouble_that_stands_above_it() -> None:
    text = (
        "RuntimeError: NCCL error: unhandled system error (run with NCCL_DEBUG=INFO for details)\n"
        "spark-1:1:1 [0] NCCL WARN Call to ibv_modify_qp failed with error No such device errno 19\n"
        "RuntimeError: Engine core initialization failed. See root cause above.\n"
    )
    assert ids(diagnose(text, "vllm")) == ["rdma-refused", "nccl-failed", "engine-core-failed"]


def test_of_two_roots_the_earlier_is_the_answer() -> None:
    full, taken = "OSError: [Errno 28] No space left on device", "OSError: [Errno 98] Address already in use"
    assert ids(diagnose(f"{full}\n{taken}")) == ["disk-full", "some-port-in-use"]
    assert ids(diagnose(f"{taken}\n{full}")) == ["some-port-in-use", "disk-full"]


def test_a_wrapper_is_the_cause_only_if_nothing_better_is_known() -> None:
    """vLLM says `invalid repository` about every failure to read a config, inside a validation error."""
    wrapper = "pydantic_core._pydantic_core.ValidationError: 1 validation error for ModelConfig"
    repository = "Value error, Invalid repository ID or local directory specified: 'x/y'."
    full = "OSError: [Errno 28] No space left on device"
    for lines, causes in (
        ([wrapper], ["vllm-unknown-key"]),
        ([wrapper, repository], ["hub-no-such-model"]),
        ([full, wrapper, repository], ["disk-full"]),
    ):
        assert [cause.id for cause in diagnose("\n".join(lines), "vllm").causes] == causes


def test_a_consequence_is_never_the_cause() -> None:
    diagnosis = diagnose("RuntimeError: Engine core initialization failed. See root cause above.", "vllm")
    assert diagnosis.state == "failed" and diagnosis.cause is None and diagnosis.follows


def test_a_row_of_another_release_does_not_answer() -> None:
    line = "This kernel only supports sm120."
    for version, known in (("0.19.0", True), ("0.32.0", False)):
        text = f"Initializing a V1 LLM engine (v{version}) with config: x\n{line}\n"
        assert (ids(diagnose(text)) == ["kernel-for-sm120-only"]) is known


def test_a_row_of_another_engine_does_not_answer() -> None:
    line = "error: invalid argument: --x"
    assert ids(diagnose(line, "llamacpp")) == ["llamacpp-unknown-flag"]
    assert ids(diagnose(line, "vllm")) == []


def test_a_start_after_a_failure_is_healthy() -> None:
    """A container that was restarted writes on in the same log."""
    failed = (LOGS / "vllm-0.32.0-cpu-port-in-use.log").read_text()
    healthy = (LOGS / "vllm-0.32.0-cpu.log").read_text()
    assert diagnose(failed + "\n" + healthy).state == "healthy"
    assert diagnose(healthy + "\n" + failed).state == "failed"


@pytest.mark.parametrize(
    ("text", "suspect"),
    [
        (
            "well\nTraceback (most recent call last):\nx.FooError: bar\nBazError: baz\n",
            (3, "x.FooError: bar"),
        ),
        ("something\nan error of no known kind\n", (2, "an error of no known kind")),
        ("all well\n", None),
        ("", None),
    ],
)
def test_an_unknown_error_is_a_suspect(text: str, suspect: tuple[int, str] | None) -> None:
    diagnosis = diagnose(text)
    assert diagnosis.suspect == suspect and diagnosis.state == ("failed" if suspect else "unfinished")


def test_a_llamacpp_log_under_a_folder_called_vllm() -> None:
    """Many people keep their models in `~/vllm`."""
    text = (LOGS / "llamacpp-11549.log").read_text().replace("/models/", "/home/spark/vllm/")
    assert diagnose(text).engine == "llamacpp"


@pytest.mark.parametrize("cut", [1, 97, 4096])
def test_the_pieces_of_a_log_do_not_matter(cut: int) -> None:
    text = (LOGS / "vllm-0.32.0-cpu-kv-too-small.log").read_text()
    parts = (text[at : at + cut] for at in range(0, len(text), cut))
    assert diagnose(parts) == diagnose(text)


@given(st.text(max_size=2000))
def test_any_text_is_diagnosed(text: str) -> None:
    assert diagnose(text).state in ("failed", "healthy", "unfinished")


def test_no_pattern_backtracks_without_limit() -> None:
    """Each on the longest possible line, made of its own sign. A bad pattern would take hours."""
    rows = [*cause_rows(), *noise_rows(), *(mark for row in engine_rows().values() for mark in row.marks)]
    for row in rows:
        for sign in row.sign:
            for filler in (sign, "x", "1", "a."):
                row.match((sign + filler * MAX_LINE)[:MAX_LINE])
                row.match((filler * MAX_LINE)[: MAX_LINE - len(sign)] + sign)


ROW = """\
causes:
  - id: some-thing
    sign: text
    pattern: '{pattern}'
    says: it says {{what}}
    next: {next}
    confidence: verified
    sources: [{{url: "https://example.org/x", seen: 2026-11-15}}]
    hits: [text]
"""


@pytest.mark.parametrize(
    ("pattern", "next", "says"),
    [
        ("text(?P<what>.{0,9})", "null", "needs a `next`"),
        ("text", "x", "captures no `what`"),
        ("text(?P<what>.*)", "x", "must limit how much it matches"),
        ("(?P<what>text)+", "x", "must limit how much it matches"),
        ("(?P<what>text", "x", "not a regular expression"),
    ],
)
def test_a_bad_row_is_refused(pattern: str, next: str, says: str) -> None:
    with pytest.raises(InvalidFile, match=says):
        values.load("x.yaml", ROW.format(pattern=pattern, next=next), CausesSchema)


# --- advice for the engine and its runtime, and whole messages ---


@pytest.mark.parametrize("row", cause_rows(), ids=lambda row: row.id)
def test_advice_names_no_flag_of_another_engine(row: CauseRow) -> None:
    arity = {engine: flag_arity(engine) for engine in engine_rows()}
    flags = {engine: known.all | known.aliases.keys() for engine, known in arity.items()}
    if row.id.startswith("build-"):
        pytest.skip("the advice is about the tools of a build")
    for engine in row.engines or tuple(engine_rows()):
        for runtime in ("container", "native", None):
            advice = row.advice(engine, runtime) or ""
            for flag in re.findall(r"(?<![\w-])--([a-z][a-z0-9-]+)", advice):
                others = {name for name, names in flags.items() if flag in names and name != engine}
                assert flag in flags[engine] or not others, (engine, runtime, flag)


@pytest.mark.parametrize("row", cause_rows(), ids=lambda row: row.id)
def test_a_native_engine_is_sent_to_no_image(row: CauseRow) -> None:
    for engine in row.engines or tuple(engine_rows()):
        advice = row.advice(engine, "native") or ""
        if not row.id.startswith(
            ("docker", "image", "ngc", "registry", "container", "serve-twice", "build-")
        ):
            assert not re.search(r"\ban? (?:newer )?image\b|vllm/vllm-openai|server-cuda13", advice), row.id


@pytest.mark.parametrize(
    ("line", "engine", "cause"),
    [
        ("/x/ggml/src/ggml-cuda/ggml-cuda.cu:2761: GGML_ASSERT(ok) failed", "llamacpp", "llamacpp-assertion"),
        ("Segmentation fault (core dumped)", "llamacpp", "crashed-in-native-code"),
        ("!!!!!!! Segfault encountered !!!!!!!", "vllm", "crashed-in-native-code"),
        (
            "RuntimeError: Assertion error (/w/deepgemm/csrc/../jit/compiler.hpp:147): runtime != nullptr",
            "vllm",
            "deepgemm-not-for-gpu",
        ),
        (
            "/x.ptx, line 2; error: Feature '.tile::scatter4' not supported on .target 'sm_121a'",
            "vllm",
            "triton-scatter-not-for-gpu",
        ),
        ("torch.AcceleratorError: CUDA error: unspecified launch failure", "vllm", "gpu-launch-failure"),
        ("CUDA error: an illegal instruction was encountered", "llamacpp", "gpu-illegal-instruction"),
        (
            "RuntimeError: [pair.cc:553] Connection closed by peer [10.0.0.2]:5801. This is typically "
            "caused by a remote worker crashing. Check the logs.",
            "vllm",
            "other-node-lost",
        ),
        ("TimeoutError: RPC call to execute_model timed out.", "vllm", "step-timed-out"),
    ],
)
def test_a_failure_while_serving(line: str, engine: EngineName, cause: str) -> None:
    """After the engine has listened, and while it loads."""
    listens = {"vllm": "INFO:     Application startup complete.", "llamacpp": "listening on http://x:1"}
    for before in (listens[engine], ""):
        diagnosis = diagnose(f"{before}\n{line}\n", engine)
        assert diagnosis.state == "failed" and diagnosis.cause and diagnosis.cause.id == cause


BOOTSTRAPPING = """\
(EngineCore pid=7) RuntimeError: 
(EngineCore pid=7)         An attempt has been made to start a new process before the
(EngineCore pid=7)         current process has {what}.
(APIServer pid=1) INFO 10-14 09:11:58 [x.py:1] something else
(EngineCore pid=7) 
(EngineCore pid=7)         This probably means that you are not using fork.
"""


def test_the_whole_message_of_an_error() -> None:
    diagnosis = diagnose(BOOTSTRAPPING.format(what="not quite started"), "vllm")
    said = "RuntimeError: An attempt has been made to start a new process before the current process has not"
    assert diagnosis.suspect and diagnosis.suspect[0] == 1
    assert diagnosis.suspect[1].startswith(said) and "something else" not in diagnosis.suspect[1]
    known = diagnose(BOOTSTRAPPING.format(what="finished its bootstrapping phase"), "vllm")
    assert known.cause and known.cause.id == "started-without-main-guard"


def test_the_message_of_a_known_error_goes_on_in_the_next_line() -> None:
    text = (
        "x.FooError: CUDA error: unspecified launch failure\nCUDA kernel errors might be late.\n\nTraceback\n"
    )
    cause = diagnose(text, "vllm").cause
    assert cause and cause.text.endswith("launch failure CUDA kernel errors might be late.")


def test_an_error_that_only_another_engine_is_known_for_is_not_lost() -> None:
    unknown = "ValueError: a head was found where a tail was expected"
    only_vllm = "ValueError: max_num_batched_tokens (8192) is smaller than max_model_len (131072). So."
    for text in (only_vllm, unknown):
        diagnosis = diagnose(f"{text}\n", "sglang")
        assert diagnosis.state == "failed" and diagnosis.suspect and diagnosis.suspect[1] == text


def test_an_exception_without_a_name_of_its_own() -> None:
    diagnosis = diagnose("Traceback (most recent call last):\nException: the tokenizer is not for that\n")
    assert diagnosis.suspect == (2, "Exception: the tokenizer is not for that")


def test_a_message_without_an_end_is_cut() -> None:
    suspect = diagnose("x.FooError: a\n" + "more words\n" * 100_000, "vllm").suspect
    assert suspect and len(suspect[1]) < 700


@pytest.mark.parametrize(
    ("runtime", "advised"), [("container", "vllm/vllm-openai"), ("native", "firesteel engine install vllm")]
)
def test_a_missing_kernel_by_runtime(runtime: Runtime, advised: str) -> None:
    line = "torch.AcceleratorError: CUDA error: no kernel image is available for execution on the device"
    cause = diagnose(line, "vllm", runtime).cause
    assert cause and advised in (cause.next or "")
    folder = {"container": "/usr/local/lib/python3.12/dist-packages", "native": "/home/me/v/site-packages"}[
        runtime
    ]
    read = diagnose(f'  File "{folder}/vllm/x.py", line 1, in f\n{line}', "vllm").cause
    assert read == replace(cause, line=2)
