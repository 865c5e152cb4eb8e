"""The reader of SGLang's sources, on small releases of both its ages."""

from __future__ import annotations

import pytest

from firesteel.engines.schema.symbols import Flag, Schema, SymbolValue
from firesteel.engines.sglang import learn as learn_sglang
from firesteel.errors import FiresteelError

WRITTEN = """
BACKENDS = ["triton", "fa3"]

@dataclasses.dataclass
class ServerArgs:
    load_format: str = "auto"

    @staticmethod
    def add_cli_args(parser):
        parser.add_argument("--model-path", "--model", type=str, required=True)
        parser.add_argument("--load-format", type=str, default=ServerArgs.load_format, choices=["auto", "pt"])
        parser.add_argument("--attention-backend", choices=BACKENDS)
        parser.add_argument("--old", action=DeprecatedAction)
        parser.add_argument("--reasoning-parser", choices=list(ReasoningParser.DetectorMap.keys()))
"""
DERIVED = """
class ServerArgs:
    @staticmethod
    def add_cli_args(parser):
        add_cli_args_from_dataclass(parser, ServerArgs)
        choices = _reasoning_parser_choices()
        parser.add_argument("--reasoning-parser", choices=["auto"] + choices)
        parser.add_argument("--mono", action=DeprecatedStoreConstAction, nargs=None, choices=["amd"])
"""
FIELDS = """
from sglang.srt.choices import FORMATS

class Model(msgspec.Struct):
    _NS_PATH = "model"

    model_path: A[str, Arg(help="h", aliases=["--model"])]
    load_format: A[str, Arg(help="h", choices=FORMATS)] = "auto"
    mode: A[Literal["a", "b"], "help"] = "a"
    sizes: A[Optional[List[int]], "help"] = None
    extra: A[Optional[List[str]], Arg(help="h", type_parser=json_list_type)] = None
    trust: A[bool, "help"] = False
    fused: A[Optional[bool], Arg(help="h", action=argparse.BooleanOptionalAction)] = None
    paths: A[List[str], Arg(help="h", action=LoRAPathAction, action_kwargs={"nargs": "*"})] = None
    gemm: A[str, Arg(help="h", cli_name="--fp4-gemm-backend")] = "auto"
    hidden: A[bool, Arg(no_cli=True)] = False
    total: A[Optional[int], Arg(help="h", type_parser=human_readable_int)] = None
    plain: int = 3
"""
ENVIRON = """
class Envs:
    SGLANG_LOG_MS = EnvBool(False)
    SGLANG_STEPS = EnvInt(3)
"""
PARSERS = """
class ReasoningParser:
    DetectorMap: Dict[str, Type[Base]] = {"qwen3": Qwen3, "gpt-oss": GptOss}
"""
USES = """
debug = get_bool_env_var("SGLANG_DEBUG") or os.environ.get('SGL_OLD')
"""
COMMON = {
    "sglang/srt/environ.py": ENVIRON,
    "sglang/srt/parser/reasoning_parser.py": PARSERS,
    "sglang/srt/uses.py": USES,
}
OLD = {"sglang/srt/server_args.py": WRITTEN, **COMMON}
NEW = {
    "sglang/srt/server_args.py": DERIVED,
    "sglang/srt/groups/model.py": FIELDS,
    "sglang/srt/choices.py": 'MORE = ["gguf"]\nFORMATS = ["auto", *MORE]\n',
    **COMMON,
}


def read(monkeypatch: pytest.MonkeyPatch, files: dict[str, str]) -> Schema:
    """Let through although they are small."""
    monkeypatch.setattr(learn_sglang, "self_check", lambda schema, *_, **__: schema)
    return learn_sglang.learn("1.0", files)


@pytest.mark.parametrize(
    "flag",
    [
        Flag("model-path", SymbolValue(), aliases=("--model",)),
        Flag("load-format", SymbolValue("str", ("auto", "pt"), open=False, default="auto")),
        Flag("attention-backend", SymbolValue("str", ("fa3", "triton"), open=False)),
        Flag("old", SymbolValue("bool"), "nothing", deprecated=True),
        Flag("reasoning-parser", SymbolValue("str", ("gpt-oss", "qwen3"))),
    ],
    ids=lambda flag: flag.name,
)
def test_arguments_written_out(monkeypatch: pytest.MonkeyPatch, flag: Flag) -> None:
    assert read(monkeypatch, OLD).flags[flag.name] == flag


@pytest.mark.parametrize(
    "flag",
    [
        Flag("model-path", SymbolValue(), aliases=("--model",)),
        Flag("load-format", SymbolValue("str", ("auto", "gguf"), open=False, default="auto")),
        Flag("mode", SymbolValue("str", ("a", "b"), open=False, default="a")),
        Flag("sizes", SymbolValue("int"), "many"),
        Flag("extra", SymbolValue("json")),
        Flag("trust", SymbolValue("bool", default=False), "nothing"),
        Flag("fused", SymbolValue("bool"), "nothing", negatives=("--no-fused",)),
        Flag("paths", SymbolValue(), "many"),
        Flag("fp4-gemm-backend", SymbolValue()),
        Flag("total", SymbolValue("size")),
        Flag("reasoning-parser", SymbolValue("str", ("auto", "gpt-oss", "qwen3"))),
        Flag("mono", SymbolValue("str", ("amd",), open=False), deprecated=True),
    ],
    ids=lambda flag: flag.name,
)
def test_arguments_derived_from_fields(monkeypatch: pytest.MonkeyPatch, flag: Flag) -> None:
    assert read(monkeypatch, NEW).flags[flag.name] == flag


def test_fields_without_a_flag(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not {"hidden", "plain", "gemm"} & set(read(monkeypatch, NEW).flags)


def test_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    assert read(monkeypatch, NEW).variables == {
        "SGLANG_LOG_MS": SymbolValue("bool", default=False),
        "SGLANG_STEPS": SymbolValue("int", default=3),
        "SGLANG_DEBUG": SymbolValue(),
        "SGL_OLD": SymbolValue(),
    }


def test_moved_sources_fail_loudly() -> None:
    with pytest.raises(FiresteelError, match="the class `ServerArgs` with `add_cli_args` was not found"):
        learn_sglang.learn("1.0", COMMON)
    with pytest.raises(FiresteelError, match="`--mem-fraction-static`"):
        learn_sglang.learn("1.0", NEW)


def test_the_image_generator_is_another_program() -> None:
    assert learn_sglang.is_relevant("sglang/srt/server_args.py")
    assert not learn_sglang.is_relevant("sglang/multimodal_gen/runtime/server_args.py")
