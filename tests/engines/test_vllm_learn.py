"""The reader of vLLM's sources, on a small release of our own that has every shape it must follow."""

from __future__ import annotations

import pytest

from firesteel.engines.schema.symbols import Flag, Schema, SymbolValue, self_check
from firesteel.engines.vllm import learn as learn_vllm
from firesteel.errors import FiresteelError

CACHE = """
from typing import Annotated, ClassVar, Literal
from pydantic import Field
from demo.config.tools import config

CacheDType = Literal["auto", "fp8"]
FastTypes = Literal["mtp", "eagle"]
Method = Literal["ngram", FastTypes]

@config
class CacheConfig:
    cache_dtype: CacheDType = "auto"
    memory: float = Field(default=0.92, gt=0, le=1)
    kv_cache_memory_bytes: int | None = None
    prefix: bool = True
    skip_layers: list[str] = Field(default_factory=list)
    used_blocks: int = Field(default=0, init=False)
    FIXED: ClassVar[int] = 16

@config
class SpeculativeConfig:
    method: Method | None = None
    num_speculative_tokens: int = None
    target: "SkipValidation[CacheConfig]" = None

@config
class MoreConfig:
    speculative_config: SpeculativeConfig | None = None
    token: bool | str | None = None
    overrides: dict[str, object] | None = None
    level: Literal[1, 2] = 1
    format: Loads | str = "auto"
"""
TOOLS = """
def config(cls=None, *, config=None):
    return dataclass(cls, config=ConfigDict(extra="forbid"))
"""
ATTENTION = """
from enum import Enum
from demo.config.tools import config

class Backend(Enum):
    FLASHINFER = "demo.backends.FlashInfer"
    TRITON = "demo.backends.Triton"

@config
class AttentionConfig:
    backend: Backend | None = None

    @field_validator("backend", mode="before")
    def read(cls, value):
        if value.lower() == "auto":
            return None
        return Backend[value.upper()]
"""
ENGINE = """
from typing import TYPE_CHECKING
from demo.config.cache import CacheConfig, MoreConfig
from demo.config.attention import AttentionConfig
from demo.consts import GONE

def get_kwargs(cls):
    human = {"max_num_batched_tokens", "kv_cache_memory_bytes"}
    kwargs[name]["nargs"] = "?"

@dataclass
class EngineArgs:
    @staticmethod
    def add_cli_args(parser):
        cache_kwargs = get_kwargs(CacheConfig)
        group = parser.add_argument_group(title="CacheConfig")
        group.add_argument("--kv-cache-dtype", **cache_kwargs["cache_dtype"])
        group.add_argument("--gpu-memory-utilization", "--memory-share", **cache_kwargs["memory"])
        group.add_argument("--kv-cache-memory-bytes", **cache_kwargs["kv_cache_memory_bytes"])
        group.add_argument("--enable-prefix-caching", **{**cache_kwargs["prefix"], "default": None})
        group.add_argument("--skip-layers", **cache_kwargs["skip_layers"])
        group.add_argument("--attention-backend", **get_kwargs(AttentionConfig)["backend"])
        more_kwargs = get_kwargs(MoreConfig)
        more_kwargs["speculative_config"]["type"] = optional_type(json.loads)
        parser.add_argument("--speculative-config", "-sc", **more_kwargs["speculative_config"])
        parser.add_argument("--hf-token", **more_kwargs["token"])
        level_kwargs = more_kwargs["level"]
        level_kwargs["choices"].remove(GONE)
        parser.add_argument("--level", **level_kwargs)
        parser.add_argument("--load-format", **more_kwargs["format"])
        kind = get_kwargs(CacheConfig)["cache_dtype"]
        kind["type"] = lambda s: s.lower().replace("-", "_")
        parser.add_argument("--moe-backend", **kind)
        for arg, type in [("--guided-a", str), ("--guided-b", int)]:
            parser.add_argument(arg, type=type, deprecated=True)
        if not "--help" in sys.argv:
            parser.add_argument("--model", type=str, default="m")
        parser.add_argument("--reasoning-parser", type=str)
        parser.add_argument("--disable-log-stats", action="store_true")

class AsyncEngineArgs(EngineArgs):
    @staticmethod
    def add_cli_args(parser):
        parser = EngineArgs.add_cli_args(parser)
        parser.add_argument("--enable-log-requests", action=argparse.BooleanOptionalAction, default=False)
"""
FRONTEND = """
from demo.engine.arg_utils import AsyncEngineArgs

@config
class BaseFrontendArgs:
    tool_call_parser: str | None = None

    @classmethod
    def add_cli_args(cls, parser):
        frontend_kwargs = get_kwargs(cls)
        frontend_kwargs = cls._customize_cli_kwargs(frontend_kwargs)
        for key, value in frontend_kwargs.items():
            group.add_argument(f"--{key.replace('_', '-')}", **value)

@config
class FrontendArgs(BaseFrontendArgs):
    port: int = 8000
    allowed_origins: list[str] = field(default_factory=lambda: ["*"])

    @classmethod
    def _customize_cli_kwargs(cls, frontend_kwargs):
        frontend_kwargs["allowed_origins"]["type"] = json.loads
        del frontend_kwargs["allowed_origins"]["nargs"]
        return frontend_kwargs

def make_arg_parser(parser):
    parser.add_argument("model_tag", nargs="?")
    parser.add_argument("--headless", action="store_true", default=False)
    return parser
"""
ENVS = """
environment_variables: dict[str, Callable[[], Any]] = {
    "VLLM_ONE": lambda: os.getenv("VLLM_ONE"),
    "VLLM_MODE": env_with_choices("VLLM_MODE", "a", ["a", "b"], case_sensitive=False),
}
"""
FILES = {
    "demo/config/cache.py": CACHE,
    "demo/config/tools.py": TOOLS,
    "demo/config/attention.py": ATTENTION,
    "demo/consts.py": 'GONE = "2"\n',
    "demo/engine/arg_utils.py": ENGINE,
    "demo/anywhere/cli_args.py": FRONTEND,
    "demo/envs.py": ENVS,
    "demo/load.py": 'Loads = Literal["auto", "pt"]\nLoadFormats = Literal["auto", "pt"]\n',
    "demo/quant.py": 'QuantizationMethods = Literal["fp8"]\n',
    "demo/reasoning/__init__.py": '_REASONING_PARSERS_TO_REGISTER = {"qwen3": ("file", "Class")}\n',
    "demo/tools/one.py": '@ToolParserManager.register_module(["hermes", "pro"])\nclass One: ...\n',
    "demo/newer.py": "def (((\n",
}


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> Schema:
    """The demo release, without the check of its size: it has one flag of each shape only."""
    monkeypatch.setattr(learn_vllm, "self_check", lambda schema, *_, **__: schema)
    return learn_vllm.learn("1.0", FILES)


@pytest.mark.parametrize(
    "flag",
    [
        Flag("kv-cache-dtype", SymbolValue("str", ("auto", "fp8"), open=False, default="auto")),
        Flag("gpu-memory-utilization", SymbolValue("float", default=0.92), aliases=("--memory-share",)),
        Flag("kv-cache-memory-bytes", SymbolValue("size")),
        Flag(
            "enable-prefix-caching", SymbolValue("bool"), "nothing", negatives=("--no-enable-prefix-caching",)
        ),
        Flag("skip-layers", SymbolValue(), "many"),
        Flag(
            "attention-backend", SymbolValue("str", ("FLASHINFER", "TRITON", "auto"), open=False, folds=True)
        ),
        Flag("speculative-config", SymbolValue("json", config="SpeculativeConfig"), aliases=("-sc",)),
        Flag("hf-token", SymbolValue(), "optional"),
        Flag("level", SymbolValue("int", ("1",), open=False, default=1)),
        Flag("load-format", SymbolValue("str", ("auto", "pt"), default="auto")),
        Flag("moe-backend", SymbolValue("str", ("auto", "fp8"), open=False, folds=True, default="auto")),
        Flag("guided-b", SymbolValue("int"), deprecated=True),
        Flag("model", SymbolValue(default="m")),
        Flag("reasoning-parser", SymbolValue("str", ("qwen3",))),
        Flag("tool-call-parser", SymbolValue("str", ("hermes", "pro"))),
        Flag("disable-log-stats", SymbolValue("bool"), "nothing"),
        Flag(
            "enable-log-requests",
            SymbolValue("bool", default=False),
            "nothing",
            negatives=("--no-enable-log-requests",),
        ),
        Flag("port", SymbolValue("int", default=8000)),
        Flag("allowed-origins", SymbolValue("json")),
        Flag("headless", SymbolValue("bool", default=False), "nothing"),
    ],
    ids=lambda flag: flag.name,
)
def test_flags(read: Schema, flag: Flag) -> None:
    assert read.flags[flag.name] == flag


def test_positionals_are_not_flags(read: Schema) -> None:
    assert "model_tag" not in read.flags


def test_configs(read: Schema) -> None:
    spec = read.configs["SpeculativeConfig"]
    assert spec.strict
    assert spec.keys["method"] == SymbolValue("str", ("eagle", "mtp", "ngram"), open=False)
    assert spec.keys["target"].config == ""
    assert "CacheConfig" not in read.configs


def test_variables(read: Schema) -> None:
    assert read.variables == {
        "VLLM_ONE": SymbolValue(),
        "VLLM_MODE": SymbolValue("str", ("a", "b"), open=False, folds=True, default="a"),
    }


@pytest.mark.parametrize(
    ("path", "missing"),
    [
        ("demo/anywhere/cli_args.py", "the class `FrontendArgs`"),
        ("demo/engine/arg_utils.py", "the class `EngineArgs`"),
        ("demo/envs.py", "the dict `environment_variables`"),
    ],
)
def test_missing_parts_are_named(path: str, missing: str) -> None:
    files = {name: text for name, text in FILES.items() if name != path}
    with pytest.raises(FiresteelError, match=missing):
        learn_vllm.learn("1.0", files)


def test_a_moved_file_is_still_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(learn_vllm, "self_check", lambda schema, *_, **__: schema)
    files = dict(FILES)
    files["demo/quite/elsewhere.py"] = files.pop("demo/anywhere/cli_args.py")
    assert "port" in learn_vllm.learn("1.0", files).flags


def test_a_small_schema_fails_the_check() -> None:
    with pytest.raises(FiresteelError) as caught:
        learn_vllm.learn("1.0", FILES)
    message = caught.value.what
    assert "`--max-model-len`" in message
    assert "at least 150 were expected" in message
    assert "vLLM 1.0" in message


def test_the_check_names_flags_without_values() -> None:
    schema = Schema("vllm", "1.0", {"port": Flag("port")})
    with pytest.raises(FiresteelError, match="the values of `--port`"):
        self_check(schema, "vLLM", required=(), flags=0, variables=0, named=("port",))


def test_only_python_sources_are_relevant() -> None:
    assert learn_vllm.is_relevant("vllm/envs.py")
    assert not learn_vllm.is_relevant("vllm/model_executor/models/qwen3.py")
    assert not learn_vllm.is_relevant("vllm/_C.abi3.so")
