"""The reader of llama.cpp's options, on a few written for it."""

from __future__ import annotations

import pytest

from firesteel.engines.llamacpp import learn as learn_llamacpp
from firesteel.engines.schema.symbols import Flag, Schema, SymbolValue
from firesteel.errors import FiresteelError

ARGS = r"""
static std::initializer_list<llama_example> image_programs = { LLAMA_EXAMPLE_MTMD, LLAMA_EXAMPLE_SERVER, };
const std::vector<ggml_type> kv_cache_types = { GGML_TYPE_F16, GGML_TYPE_Q8_0, };

void init() {
    add_opt(common_arg(
        {"-c", "--ctx-size"}, "N",
        string_format("size, in \"tokens\" (default: %d), unless {auto}", params.n_ctx),
        [](common_params & params, int value) { params.n_ctx = value; }
    ).set_env("LLAMA_ARG_CTX_SIZE"));
    add_opt(common_arg({ "-fa", "--flash-attn" }, "[on|off|auto]", "help",
        [](common_params & params, const std::string & value) {
            if (is_truthy(value)) { params.fa = 1; } else if (value == "off") { params.fa = 0; }
            else { throw std::runtime_error("unknown value"); }
        }));
    add_opt(common_arg(
        // note: "-dev" comes after "--rpc"
        {"--device"}, "DEV", "help", // trailing, with a comma
        [](common_params & params, const std::string & value) {
            if (value == "none") { return; } else { throw parse_devices(value); }
        }
    ).set_examples(image_programs).set_env("LLAMA_ARG_DEVICE")); // not a prefix
    add_opt(common_arg(
        {"-kvo", "--kv-offload"}, {"-nkvo", "--no-kv-offload"}, "DEPRECATED: help",
        [](common_params & params, bool value) { params.kvo = value; }));
    add_opt(common_arg({"-ctk", "--cache-type-k"}, "TYPE", "help",
        [](common_params & params, const std::string & value) { params.k = kv_cache_type_from_str(value); }));
    add_opt(common_arg({"--range"}, "START", "END", "help",
        [](common_params & params, const std::string & a, const std::string & b) { params.r = {a, b}; }));
    add_opt(common_arg({"--verbose"}, "help", [](common_params & params) { params.verbose = true; }));
    add_opt(common_arg({"--train"}, "N", "help",
        [](common_params & params, int value) { }).set_examples({LLAMA_EXAMPLE_FINETUNE}));
    add_opt(common_arg({"--prompt"}, "P", "help",
        [](common_params & params, int value) { }).set_excludes({LLAMA_EXAMPLE_SERVER}));
    add_opt(common_arg({"--draft-max"}, "N", "the argument has been removed. use --x",
        [](common_params &, int) { arg_removed("use --x"); }).set_env("LLAMA_ARG_DRAFT_MAX"));
    add_opt(common_arg({"--spec-type"}, names(), "help",
        [](common_params & params, const std::string & value) {
            params.t = common_speculative_types_from_names(value);
        }));
}
"""
SPEC = 'case COMMON_SPECULATIVE_TYPE_MTP: return "draft-mtp";\n'
FILES = {"vendor/common/arg.cpp": ARGS, "vendor/common/speculative.cpp": SPEC}


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> Schema:
    """Let through although it is small."""
    monkeypatch.setattr(learn_llamacpp, "self_check", lambda schema, *_, **__: schema)
    return learn_llamacpp.learn("1", FILES)


@pytest.mark.parametrize(
    "flag",
    [
        Flag("ctx-size", SymbolValue("int"), aliases=("-c",), variables=("LLAMA_ARG_CTX_SIZE",)),
        Flag(
            "flash-attn",
            SymbolValue("str", ("1", "enabled", "off", "on", "true"), open=False),
            aliases=("-fa",),
        ),
        Flag("device", SymbolValue("str", ("none",)), variables=("LLAMA_ARG_DEVICE",)),
        Flag(
            "kv-offload",
            SymbolValue("bool"),
            "nothing",
            ("-kvo",),
            ("-nkvo", "--no-kv-offload"),
            deprecated=True,
        ),
        Flag("cache-type-k", SymbolValue("str", ("f16", "q8_0"), open=False), aliases=("-ctk",)),
        Flag("range", SymbolValue(), "many"),
        Flag("verbose", SymbolValue("bool"), "nothing"),
        Flag("spec-type", SymbolValue("str", ("draft-mtp",))),
    ],
    ids=lambda flag: flag.name,
)
def test_flags(read: Schema, flag: Flag) -> None:
    assert read.flags[flag.name] == flag


def test_only_what_the_server_has(read: Schema) -> None:
    assert not {"train", "prompt", "draft-max", "rpc"} & set(read.flags)


def test_variables(read: Schema) -> None:
    assert set(read.variables) == {"LLAMA_ARG_CTX_SIZE", "LLAMA_ARG_DEVICE"}


def test_moved_sources_fail_loudly() -> None:
    with pytest.raises(FiresteelError, match=r"`add_opt\(common_arg\(` in common/arg\.cpp was not found"):
        learn_llamacpp.learn("1", {"common/arg.cpp": "// see cli/options.cpp\n"})
    with pytest.raises(FiresteelError, match="`--model`"):
        learn_llamacpp.learn("1", FILES)


def test_vendored_sources_are_relevant() -> None:
    assert learn_llamacpp.is_relevant("thirdparty/llama.cpp/common/arg.cpp")
    assert not learn_llamacpp.is_relevant("thirdparty/llama.cpp/common/log.cpp")
