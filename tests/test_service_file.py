"""The service file: what is taken, and what is refused with its line."""

from __future__ import annotations

import pytest

from firesteel.errors import UsageError
from firesteel.service_file import asks, chosen, on_nodes, read_service_file, with_ports
from firesteel.service_settings import FallbackEntry, ParameterEntry
from firesteel.units import GIB

GOOD = """\
listen: 127.0.0.1:8080
memory: {ceiling: 110GiB}
models:
  coder: {recipe: qwen3-coder-next-fp8, context: 131072, pinned: true}
  small: {recipe: smollm2, ttl: 10m, port: 8001}
  third: {recipe: smollm2}
  other: {url: "http://127.0.0.1:9000", memory: 20GiB}
  pair:
    urls: ["http://127.0.0.1:9001/v1", "https://[::1]:9002"]
    route: prefix
    model: org/name
    key: PAIR_KEY
    cancel: drain
queue: {size: 8, max_wait: 90s}
never_together: [[coder, small]]
"""


def test_the_shape_in_the_manual() -> None:
    file = read_service_file("firesteel.yaml", GOOD)
    assert file.memory.ceiling == 110 * GIB
    assert file.models["coder"].pinned and file.models["coder"].context == 131072
    assert file.models["small"].ttl == 600
    assert file.models["other"].memory == 20 * GIB
    assert file.models["other"].addresses == ("http://127.0.0.1:9000",)
    assert file.models["pair"].addresses == ("http://127.0.0.1:9001/v1", "https://[::1]:9002")
    assert file.models["coder"].addresses == ()
    assert (file.models["pair"].cancel, file.models["coder"].cancel) == ("drain", "cancel")


def test_a_queue_of_which_nothing_is_said() -> None:
    said = read_service_file("f", GOOD).queue
    assert (said.size, said.max_wait, said.min_dwell) == (8, 90, 120)
    unsaid = read_service_file("f", "models:\n  a: {recipe: x}").queue
    assert (unsaid.size, unsaid.max_wait, unsaid.min_dwell) == (256, 300, 120)


@pytest.mark.parametrize("text", ["models: {smollm2: smollm2}", "models: [smollm2]", "models:\n- smollm2"])
def test_short_for_a_recipe(text: str) -> None:
    whole = read_service_file("f", "models: {smollm2: {recipe: smollm2}}")
    assert read_service_file("f", text) == whole
    assert read_service_file("f", "models: [openai/gpt-oss-20b]").models["gpt-oss-20b"].recipe


def test_timeouts_and_the_gateways_own_memory() -> None:
    text = "memory: {gateway: 64MiB}\nmodels:\n  a: {url: 'http://h:1', timeouts: {first_byte: 20m}}\n  b: x"
    file = read_service_file("f", text)
    timeouts = file.models["a"].timeouts
    assert (timeouts.first_byte, timeouts.gap, timeouts.answer) == (1200, 300, 3600)
    assert file.memory.gateway == 64 * 2**20
    assert read_service_file("f", "models: {a: x}").memory.gateway == 128 * 2**20


def test_what_else_a_model_answers_to() -> None:
    text = "models:\n  a: {recipe: x, aliases: ['gpt-oss:20b', openai/gpt-oss-20b]}\n  b: x"
    models = read_service_file("f", text).models
    assert tuple(models["a"].aliases) == ("gpt-oss:20b", "openai/gpt-oss-20b") and not models["b"].aliases


def test_no_mistake_is_told_in_the_words_of_the_schema() -> None:
    for text in ("", "x", "models: 5", "models: {a: [x]}", "models: {a: x}\nmemory: 1GiB\nqueue: []"):
        with pytest.raises(UsageError) as refused:
            read_service_file("f", text)
        assert not any(word in str(refused.value) for word in ("dictionary", "instance", "tuple", "Entry"))


def test_no_model_gets_the_gateways_own_port() -> None:
    file = read_service_file("f", "listen: 127.0.0.1:8000\nmodels:\n  a: {recipe: x}")
    assert with_ports(file, asks(file))["a"].port == 8001


def test_a_port_is_written_or_taken_when_the_model_starts() -> None:
    file = read_service_file("f", GOOD)
    assert {name: ask.port for name, ask in asks(file).items()} == {
        "coder": None, "small": 8001, "third": None,
    }  # fmt: skip
    ports = {name: ask.port for name, ask in with_ports(file, asks(file)).items()}
    assert ports == {"coder": 8000, "small": 8001, "third": 8002}, "where it is written down before"


def test_those_that_were_named_are_started() -> None:
    file = read_service_file("f", GOOD)
    assert list(chosen(file, ("third", "coder"))) == ["coder", "third"]


@pytest.mark.parametrize(
    ("names", "says"),
    [
        ((), "coder and small must not run together"),
        (("coder", "small"), "coder and small must not run together"),
        (("nobody",), "starts no `nobody`; it has coder, small, third"),
        (("other",), "starts no `other`"),
    ],
)
def test_what_cannot_be_started(names: tuple[str, ...], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        chosen(read_service_file("f", GOOD), names)


PARAMETERS = "models:\n  a:\n    recipe: x\n    parameters: {"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("models: {}", "f:1: `models`: has no model; write it like `models: {small: smollm2}`"),
        ("models: []", "has no model"),
        ("models:\n  a: {recipe: x, timeouts: 10m}", "f:2: .*write it like `timeouts: {first_byte: 10m"),
        ("memory: {gateway: 1MiB}\nmodels: {a: x}", "f:1: `memory.gateway`: is too small"),
        ("models:\n  a: {recipe: x, url: 'http://127.0.0.1:1'}", "f:2: .*one of them"),
        ("models:\n  a: {}", "f:2: .*needs `recipe` or `url`"),
        ("models:\n  a: {url: 'ftp://x'}", "not an http address"),
        ("models:\n  a: {url: 'http://127.0.0.1:1', context: 5}", "has no `context`"),
        ("models:\n  a: {recipe: x, ttl: 10}", "f:2: .*is not a time"),
        ("models:\n  a: {recipe: x, port: 70000}", "f:2"),
        ("models:\n  a: {recipe: x, colour: red}", "f:2: .*no such key"),
        ("models:\n  a/b: {recipe: x}", "f:2: `a/b` is not a valid name"),
        ("models:\n  ../a: {recipe: x}", "f:2: .*is not a valid name"),
        (
            "models:\n  a: {recipe: x, port: 1}\n  b:\n    recipe: x\n    port: 1",
            "f:5: .*the same port as `a`",
        ),
        ("models:\n  a: {recipe: x}\nnever_together: [[a, c]]", "f:3: .*`c` is not in `models`"),
        ("models:\n  a: {recipe: x}\nnever_together:\n  - [a]\n  - [a,\n     c]", "f:6: .*`c` is not in"),
        ("models:\n  a:\n    memory: 1GiB\n    url: 'ftp://x'", "f:4: .*not an http address"),
        ("models:\n  a:\n    url: 'http://[x'", "f:3: .*not an http address"),
        ("models:\n  a:\n    url: 'http://127.0.0.1:99999'", "f:3: .*not an http address"),
        ("models:\n  a:\n    url: 'http://127.0.0.1:1'\n    users: 5", "f:4: .*has no `users`"),
        ("models:\n  a: {}\n  b: {}", "f:2: .*\nf:3: "),
        ("listen: everywhere:80\nmodels:\n  a: {recipe: x}", "f:1: .*write it like 127.0.0.1:8080"),
        ("listen: 0.0.0.0\nmodels:\n  a: {recipe: x}", "f:1: .*write it like"),
        ("models:\n  a: {recipe: x, url: 'http://127.0.0.1:1'}", "one of them"),
        ("models:\n  a: {url: 'http://127.0.0.1:1', urls: ['http://127.0.0.1:2']}", "f:2: .*one of them"),
        ("models:\n  a:\n    urls: []", "f:3"),
        (
            "models:\n  a:\n    urls:\n      - http://127.0.0.1:1\n      - ftp://x",
            "f:5: .*not an http address",
        ),
        ("models:\n  a:\n    urls: ['http://a:1',\n      'http://a:1']", "f:4: .*twice"),
        ("models:\n  a:\n    url: 'http://127.0.0.1:1'\n    route: prefix", "f:4: .*chooses among `urls`"),
        ("models:\n  a:\n    url: 'http://127.0.0.1:1'\n    route: random", "f:4"),
        ("models:\n  a:\n    url: 'http://x:1'\n    key: sk-1234", "f:4: .*neither the name of a variable"),
        ("models:\n  a:\n    url: 'http://me:secret@x:1'", "f:3: .*has a name or a password"),
        ("models:\n  a:\n    url: 'http://x:1/?key=1'", "f:3: .*ends with a query"),
        ("models:\n  a:\n    url: 'http://x:1/ HTTP'", "f:3: .*not an http address"),
        ("models:\n  a:\n    url: 'http://x:1'\n    pinned: true", "f:4: .*takes no `pinned`"),
        ("models:\n  a:\n    url: 'http://x:1'\n    preload: true", "f:4: .*takes no `preload`"),
        ("models:\n  a:\n    url: 'http://x:1'\n    ttl: 5m", "f:4: .*has no `ttl`"),
        ("models:\n  a:\n    recipe: x\n    key: A_KEY", "f:4: .*`key` is for a model at a `url`"),
        ("models:\n  a:\n    recipe: x\n    model: y", "f:4: .*`model` is for a model at a `url`"),
        ("models:\n  a:\n    recipe: x\n    cancel: never", "f:4"),
        ("queue: {size: 0}\nmodels:\n  a: {recipe: x}", "f:1"),
        ("queue: {max_wait: 5}\nmodels:\n  a: {recipe: x}", "f:1: .*is not a time"),
        ("listen: 127.0.0.1:9\nmodels:\n  a: {recipe: x, port: 9}", "f:3: .*the port of `listen`"),
        ("", "f:1: the file is empty; write for example `models: {small: smollm2}`"),
        ("# nothing yet\n", "f:1: the file is empty"),
        ("smollm2", "f:1: the file is not a map; write for example"),
        ("memory: 100GiB\nmodels: {a: x}", r"f:1: `memory`: .*write it like `memory: \{ceiling: 100GiB\}`"),
        ("memory:\nmodels: {a: x}", "f:1: `memory`: .*write it like"),
        ("queue: 5\nmodels: {a: x}", r"f:1: `queue`: .*write it like `queue: \{size: 256\}`"),
        ("models: smollm2", r"f:1: `models`: .*write it like `models: \{small: smollm2\}`"),
        ("models:", "f:1: `models`: .*write it like"),
        ("models: [{a: b}]", "f:1: `models`: .*write it like"),
        ("models: [a, b, x/a]", "f:1: `models`: has a name twice"),
        ("models: ['.hidden']", "f:1: `.hidden` is not a valid name"),
        ("models:\n  a: [smollm2]", "f:2: `models.a`: needs a recipe; write it like `small: smollm2`"),
        ("models:\n  a:", "f:2: `models.a`: needs a recipe"),
        ("models: {a: x, b: x}\nnever_together: [a, b]", r"f:2: .*write it like `never_together: \[\["),
        ("models:\n  a:\n    urls: http://x:1", "f:3: .*is a list; write it like `urls: "),
        ("models:\n  a: {recipe: x, aliases: 'g:1'}", "f:2: .*is a list; write it like `aliases: "),
        ("models:\n  a: {recipe: x, aliases: ['a b']}", "f:2: .*`a b` cannot be asked for"),
        ("models:\n  a: {recipe: x, aliases: ['']}", "f:2: .*cannot be asked for"),
        ("models:\n  a: {recipe: x, aliases: [b]}\n  b: x", "f:2: .*`b` is the name of a model"),
        ("models:\n  a: {recipe: x, aliases: [a]}", "f:2: .*`a` is the name of a model"),
        ("models:\n  a: {recipe: x, aliases: ['g:1']}\n  b: {recipe: x, aliases: ['g:1']}", "f:3: .*to `a`"),
        ("memory: {ceiling: much}\nmodels:\n  a: {recipe: x}", "f:1: .*is not a size"),
        (PARAMETERS + "fixed: {model: b}}", "f:4: .*`fixed`: `model` is the client's and the gateway's own"),
        (PARAMETERS + "defaults: {stream: true}}", "f:4: .*`stream` is the client's"),
        (PARAMETERS + "strip: [messages]}", "f:4: .*`strip`: `messages` is the client's"),
        (PARAMETERS + "fixed: {'a b': 1}}", "f:4: .*`a b` is not a field of a request"),
        (PARAMETERS + "fixed: {'a\\r\\nX: 1': 1}}", "f:4: .*is not a field of a request"),
        (PARAMETERS + "defaults: {temperature: NaN}}", "f:4: .*cannot be written as JSON"),
        (PARAMETERS + "defaults: {a: [1, {b: Infinity}]}}", "f:4: .*cannot be written as JSON"),
        (PARAMETERS + "fixed: {a: '" + "[" * 100_000 + "'}}", "f:4: .*longer than 4096 bytes"),
        (PARAMETERS + "fixed: {a: " + "x" * 5000 + "}}", "f:4: .*longer than 4096 bytes"),
        (PARAMETERS + "fixed: {user: a}, strip: [user]}", "f:4: .*`user` is stripped and set"),
        (PARAMETERS + "limits: {max_tokens: 0}}", "f:4: "),
        (PARAMETERS + "limits: {max_tokens: many}}", "f:4: .*is not a number of tokens"),
        (PARAMETERS + "limits: 4096}", "f:4: .*write it like `limits: "),
        (PARAMETERS + "defaults: [temperature]}", "f:4: .*write it like `defaults: "),
        (PARAMETERS + "strip: user}", "f:4: .*write it like `strip: "),
        (PARAMETERS + "default: {}}", "f:4: "),
        ("models:\n  a:\n    recipe: x\n    parameters: fast", "f:4: .*write it like `parameters: "),
        ("models:\n  a:\n    recipe: x\n    aliases: {fast: {fixed: {model: b}}}", "f:4: .*`model` is the"),
        ("models:\n  a:\n    recipe: x\n    aliases: {fast: 5}", "f:4: "),
        ("models:\n  a:\n    recipe: x\n    aliases: [g, g]", "f:4: .*has a name twice"),
        ("models:\n  a:\n    recipe: x\n    fallback: b", "f:4: .*`b` is not in `models`"),
        ("models:\n  a: {cmd: 'x ${PORT}'}", "f:2: .*a `cmd` needs `memory`"),
        ("models:\n  a: {cmd: x, memory: 1GiB}", "f:2: .*no .{PORT}, so that its `port` must be given"),
        ("models:\n  a: {cmd: [], memory: 1GiB}", "f:2: "),
        ("models:\n  a: {cmd: 'x \"${PORT}', memory: 1GiB}", "f:2: .*a quote without its pair"),
        ("models:\n  a: {cmd: ['', '${PORT}'], memory: 1GiB}", "f:2: .*begins with no program"),
        ("models:\n  a: {cmd: 'x ${PORT}', memory: 1GiB, recipe: y}", "f:2: .*one of them"),
        (
            "models:\n  a: {cmd: 'x ${PORT}', memory: 1GiB, health: 'http://x/'}",
            "f:2: .*write it like `/health`",
        ),
        ("models:\n  a: {cmd: 'x ${PORT}', memory: 1GiB, health: '/a b'}", "f:2: .*write it like `/health`"),
        ("models:\n  a: {cmd: 'x ${PORT}', memory: 1GiB, env: {'A B': x}}", "f:2: .*cannot be a variable"),
        ("models:\n  a: {cmd: 'x ${PORT}', memory: 1GiB, context: 8}", "f:2: .*a `cmd` has no `context`"),
        ("models:\n  a: {cmd: 'x ${PORT}', memory: 1GiB, key: KEY}", "f:2: .*a `cmd` has no `key`"),
        ("models:\n  a: {recipe: x, health: /h}", "f:2: .*are for a `cmd`"),
        ("models:\n  a:\n    recipe: x\n    fallback: a", "f:4: .*`a` is this model itself"),
        ("models:\n  a: {recipe: x, aliases: [g], fallback: {down: g}}", "f:2: .*`g` is this model itself"),
        ("models:\n  a:\n    recipe: x\n    fallback: {slow: b}\n  b: x", "f:4: "),
        ("models:\n  a:\n    recipe: x\n    fallback: [b]\n  b: x", "f:4: .*write it like `fallback: small`"),
    ],
)
def test_mistakes_are_named_with_their_line(text: str, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        read_service_file("f", text)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (
            "models:\n  a: {recipe: x, port: 70000}",
            "f:2: `models.a.port`: should be at most 65535, got `70000`",
        ),
        (
            "models:\n  a: {recipe: x, context: many, users: 0}\n  b: {recipe: x, pinned: perhaps}",
            "f:2: `models.a.context`: should be a whole number, got `many`\n"
            "f:2: `models.a.users`: should be at least 1, got `0`\n"
            "f:3: `models.b.pinned`: should be true or false, got `perhaps`",
        ),
        (
            "models:\n  a: {recipe: x, cancel: never}",
            "f:2: `models.a.cancel`: should be `cancel` or `drain`, got `never`",
        ),
        ("models:\n  a:\n    urls: []", "f:3: `models.a.urls`: should have at least 1 item"),
        (
            "models: {a: x}\nalerts: {webhook: ''}",
            "f:2: `alerts.webhook`: should have at least 1 character, got ``",
        ),
        (
            "models:\n  a:\n    recipe: [x]\n    colour: red\n    context: 1.5\n"
            "    aliases: {b: {limits: {context: 0}}}",
            "f:3: `models.a.recipe`: should be text\nf:4: `models.a.colour`: no such key\n"
            "f:5: `models.a.context`: should be a whole number, got `1.5`\n"
            "f:6: `models.a.aliases.b.limits.context`: should be at least 1, got `0`",
        ),
        (
            "models: {a: {cmd: {b: c}, memory: -1GiB}}\nlisten: [1]",
            "f:1: `models.a.memory`: `-1GiB` is not a size; write it like 110GiB, 64GB\n"
            "f:1: `models.a.cmd`: should be a list\n"
            "f:2: `listen`: is not an address and a port; write it like 127.0.0.1:8080",
        ),
    ],
)
def test_the_whole_message_of_several_mistakes(text: str, says: str) -> None:
    with pytest.raises(UsageError) as refused:
        read_service_file("f", text)
    assert sorted(str(refused.value.what).splitlines()) == sorted(says.splitlines())


@pytest.mark.parametrize(
    ("word", "is_pinned"), [("yes", True), ("On", True), ("Y", True), ("off", False), ("n", False)]
)
def test_words_for_true_and_false(word: str, is_pinned: bool) -> None:
    text = f"models:\n  a: {{recipe: x, pinned: {word}, context: 131_072}}"
    entry = read_service_file("f", text).models["a"]
    assert entry.pinned is is_pinned and entry.context == 131072


def test_what_may_be_a_secret_is_not_repeated() -> None:
    for line in ("key: sk-hunter2", "url: 'http://me:hunter2@x:1'", "url: 'http://x:1/?key=hunter2'"):
        text = f"models:\n  a:\n    {line}" + ("\n    url: http://x:1" if line.startswith("key") else "")
        with pytest.raises(UsageError) as refused:
            read_service_file("f", text)
        assert "hunter2" not in str(refused.value)


def test_alerts() -> None:
    text = (
        "models: [smollm2]\nalerts: {webhook: ALERT_URL, command: mail -s spark me, repeat: 1h, disk: 5GiB}\n"
    )
    alerts = read_service_file("f", text).alerts
    assert (alerts.webhook, alerts.command) == ("ALERT_URL", ("mail", "-s", "spark", "me"))
    assert (alerts.repeat, alerts.disk) == (3600, 5 * GIB)
    listed = read_service_file("f", 'models: [smollm2]\nalerts: {command: [sh, -c, "echo $0"]}\n').alerts
    assert listed.command == ("sh", "-c", "echo $0") and listed.webhook is None


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ("alerts: https://hooks.example", "is a map of settings"),
        ("alerts: {webhook: hooks.example/secret}", "neither an http address nor the name of a variable"),
        ("alerts: {webhook: 'http://a b'}", "neither an http address nor the name of a variable"),
        ("alerts: {command: 'a \"b'}", "a quote without its pair"),
        ("alerts: {command: ['']}", "begins with no program"),
        ("alerts: {repeat: 5s}", "`alerts.repeat`: should be at least 60, got `5s`"),
        ("alerts: {disk: lots}", "is not a size"),
        ("alerts: {email: me}", "email"),
    ],
)
def test_alerts_that_are_refused(line: str, what: str) -> None:
    with pytest.raises(UsageError) as error:
        read_service_file("f.yaml", f"models: [smollm2]\n{line}\n")
    assert what in error.value.what and "f.yaml:2" in error.value.what and "secret" not in error.value.what


def test_parameters_and_aliases_with_their_own() -> None:
    text = """
models:
  coder:
    recipe: x
    parameters:
      defaults: {temperature: 0.6, min_p: null}
      fixed: {chat_template_kwargs: {enable_thinking: true}}
      strip: [user]
      limits: {max_tokens: 4k, context: 32768}
    aliases:
      "gpt-oss:20b":
      coder-fast: {fixed: {chat_template_kwargs: {enable_thinking: false}}, limits: {max_tokens: 512}}
"""
    coder = read_service_file("f", text).models["coder"]
    assert coder.parameters.defaults == {"temperature": 0.6, "min_p": None}
    assert (coder.parameters.limits.max_tokens, coder.parameters.limits.context) == (4096, 32768)
    assert coder.parameters.strip == ("user",)
    assert coder.aliases["gpt-oss:20b"] == ParameterEntry()
    assert coder.aliases["coder-fast"].limits.max_tokens == 512


def test_a_fallback_for_every_reason_or_for_one() -> None:
    text = "models:\n  a: {recipe: x, fallback: b}\n  b: {recipe: x, fallback: {too_long: big}}\n  big: x\n"
    models = read_service_file("f", text).models
    assert models["a"].fallback == FallbackEntry(down="b", full="b", too_long="b")
    assert models["b"].fallback == FallbackEntry(too_long="big") and models["big"].fallback is None


HOSTS = "hosts: {spark1: 127.0.0.1, spark2: 192.168.100.11}\n"


def test_models_on_other_hosts() -> None:
    text = HOSTS + (
        "models:\n  big: {recipe: smollm2, nodes: 2}\n  far: {recipe: smollm2, node: spark2, context: 512}\n"
        "  pair: {recipe: smollm2, node: [spark1, spark2], route: prefix}\n  near: smollm2\n"
    )
    file = read_service_file("f", text)
    assert {name: ask.sparks for name, ask in asks(file).items()} == {"big": 2, "near": None}
    there = on_nodes(file)
    far, pair = there["far"].ask.port, there["pair"].ask.port
    assert there["far"].urls == (f"http://192.168.100.11:{far}",) and there["far"].ask.context == 512
    assert there["pair"].urls == (f"http://127.0.0.1:{pair}", f"http://192.168.100.11:{pair}")
    more = HOSTS + "models:\n  first: {recipe: smollm2, node: spark2}\n" + text[len(HOSTS + "models:\n") :]
    assert on_nodes(read_service_file("f", more))["far"] == there["far"], "no place in the file counts"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("models:\n  a: {recipe: smollm2, node: spark2}", "`spark2` is not in `hosts`"),
        (
            HOSTS + "models:\n  a: {recipe: smollm2, node: spark2, nodes: 2}",
            "together .`nodes`., or each alone",
        ),
        (HOSTS + "models:\n  a: {recipe: smollm2, node: [spark1, spark2], ttl: 5m}", "takes no `ttl`"),
        (
            "models:\n  a: {recipe: smollm2, fallback_recipe: smollm2}",
            "`fallback_recipe` is for a model over several hosts",
        ),
        (HOSTS + "models:\n  a: {recipe: smollm2, node: spark2, route: prefix}", "`route` is for a model at"),
        (HOSTS + "models:\n  a: {recipe: smollm2, node: [spark2, spark2]}", "has a host twice"),
        (HOSTS + "models:\n  a: {url: 'http://x:1', node: spark2}", "has no `node`"),
        ("models:\n  a: {recipe: smollm2, nodes: 1}", "`models.a.nodes`: should be at least 2, got `1`"),
        ("hosts: {spark2: spark2}\nmodels: [smollm2]", "is not an address"),
        ("hosts: [spark2]\nmodels: [smollm2]", "write it like `hosts: {spark2: 192.168.100.11}`"),
    ],
)
def test_mistakes_about_hosts(text: str, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        read_service_file("f", text)


def test_what_a_server_at_a_url_speaks() -> None:
    def speaks(words: str, more: str = "url: 'http://a:1'") -> tuple[str, ...]:
        return read_service_file("f", f"models: {{a: {{{more}, speaks: {words}}}}}\n").models["a"].speaks

    assert speaks("chat") == ("chat",)
    assert speaks("[messages, responses]") == ("messages", "responses")
    for wrong in ("openai", "[]", "5", "{}", "[chat, 5]"):
        with pytest.raises(UsageError, match="write it like `speaks: chat`"):
            speaks(wrong)
    with pytest.raises(UsageError, match="`speaks` is for a `url` or a `cmd`"):
        speaks("chat", "recipe: smollm2")


def test_adapters_of_a_recipe() -> None:
    file = read_service_file("f", "models:\n  a: {recipe: x, adapters: {polite: /data/p, curt: org/c}}")
    assert [(each.name, each.reference) for each in asks(file)["a"].adapters] == [
        ("polite", "/data/p"), ("curt", "org/c"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("a: {url: 'http://h:1', adapters: {p: /p}}", "f:2: `a`: `adapters` are for a `recipe`"),
        ("a: {recipe: x, adapters: {'p q': /p}}", "f:2: `a`: `p q` is not a valid name"),
        ("a: {recipe: x, adapters: {a: /p}}", "f:2: `a`: the adapter `a` has the name of another model"),
        (
            "a: {recipe: x, adapters: {p: /p}}\n  b: {recipe: x, adapters: {p: /p}}",
            "f:3: `b`: the adapter `p`",
        ),
        (
            "a: {recipe: x, adapters: {p: /p}}\n  b: {recipe: x, aliases: [p]}",
            "f:3: `b`: the alias `p` is given",
        ),
        ("a: {recipe: x, adapters: [p]}", "f:2: "),
    ],
)
def test_adapters_that_are_refused(text: str, says: str) -> None:
    with pytest.raises(UsageError) as raised:
        read_service_file("f", f"models:\n  {text}")
    assert says in str(raised.value)
