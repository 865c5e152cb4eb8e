"""The words in front of an engine's program: do they run it, or is it only what they are about?

`sudo -u llm nohup llama-server` starts a server, `systemctl restart llama-server` and `cmake --target
llama-server` do not, and of `./launch-cluster.sh exec vllm serve` nobody knows which build it runs. So the
programs that run another one are listed, each with the words that it takes first.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

_KEYWORDS = frozenset({"if", "then", "else", "elif", "do", "while", "until", "!", "{", "builtin"})
_TRACE = re.compile(r"\++\Z|\$\Z|%\Z|>\Z")
"""What a shell prints in front of a command: a prompt, or `+` of `set -x`."""
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=")
_VARIABLE = re.compile(r"\$")
_ANY = "*"
_RUNNERS: dict[str, tuple[int, str]] = {
    "sudo": (0, "ugCDhprtTU"), "doas": (0, "uC"), "env": (0, "uCS"), "nohup": (0, ""), "exec": (0, "a"),
    "command": (0, ""), "eval": (0, ""), "time": (0, "fo"), "setsid": (0, ""), "nice": (0, "n"),
    "ionice": (0, "cnp"), "chrt": (1, ""), "taskset": (1, ""), "numactl": (0, _ANY), "timeout": (1, "ks"),
    "stdbuf": (0, "ioe"), "unbuffer": (0, ""), "flock": (1, "wE"), "caffeinate": (0, ""),
    "uv": (2, _ANY), "uvx": (0, _ANY), "pipx": (1, _ANY), "poetry": (1, _ANY), "pdm": (1, _ANY),
    "hatch": (1, _ANY), "pixi": (1, _ANY), "conda": (1, _ANY), "mamba": (1, _ANY), "micromamba": (1, _ANY),
    "nsys": (1, _ANY), "ncu": (0, _ANY), "rocprof": (0, _ANY), "rocprofv3": (0, _ANY), "perf": (1, _ANY),
    "strace": (0, _ANY), "gdb": (0, _ANY), "valgrind": (0, _ANY), "py-spy": (1, _ANY),
    "srun": (0, _ANY), "mpirun": (0, _ANY), "mpiexec": (0, _ANY), "torchrun": (0, _ANY),
    "ssh": (1, _ANY), "sshpass": (0, _ANY), "apptainer": (2, _ANY), "singularity": (2, _ANY),
    "tini": (0, "pesg"), "dumb-init": (0, ""), "gosu": (1, ""), "su-exec": (1, ""), "runuser": (1, _ANY),
    "setpriv": (0, _ANY), "chroot": (1, _ANY), "with-contenv": (0, ""), "opentelemetry-instrument": (0, _ANY),
    "systemd-run": (0, _ANY), "systemd-cat": (0, _ANY), "systemd-inhibit": (0, _ANY), "screen": (0, _ANY),
    "tmux": (1, _ANY), "nix": (2, _ANY), "wsl": (0, _ANY), "xvfb-run": (0, _ANY),
}  # fmt: skip
"""How many words of its own each takes before the program, and the letters of options that take a value."""
_NEED_THEIR_WORDS = frozenset({"ssh", "timeout", "flock", "gosu", "su-exec"})
"""Without these words of their own they do not run what follows, but take it for them."""
_WITH_VALUE = frozenset({
    "--user", "--group", "--env", "--env-file", "--workdir", "--name", "--namespace", "--container",
    "--context", "--entrypoint", "--file", "--project-name", "--volume", "--publish", "--kill-after",
    "--chdir",
})  # fmt: skip
_CONTAINER_TOOLS = frozenset({"docker", "podman", "nerdctl", "docker-compose", "podman-compose"})
_PODS = frozenset({"kubectl", "oc"})


def run_the_next(words: Sequence[str]) -> bool:
    """Whether these words only run what follows them."""
    index = 0
    while index < len(words):
        name = words[index].rpartition("/")[2]
        if name in _KEYWORDS or _TRACE.match(name) or _ASSIGNMENT.match(name) or _VARIABLE.match(name):
            index += 1
        elif name in _CONTAINER_TOOLS | _PODS:
            own = _words_of_container_tool(words[index + 1 :])
            index, missing = _after(words, index + 1, own or 0, "cefnpuvw")
            if own is None or missing:  # `docker exec llama-server ls`
                return False
        elif name in _RUNNERS and not _only_asks(name, words[index + 1 :]):
            index, missing = _after(words, index + 1, *_RUNNERS[name])
            if missing and name in _NEED_THEIR_WORDS:
                return False
        else:
            return False
    return True


def _only_asks(name: str, following: Sequence[str]) -> bool:
    """`command -v llama-server` says where it is."""
    return name == "command" and bool(following) and following[0] in ("-v", "-V")


def _words_of_container_tool(following: Sequence[str]) -> int | None:
    """`exec NAME`, `compose run SERVICE`: what follows runs in that container. Others only look at one."""
    plain = [word for word in following if not word.startswith("-")][:4]
    if plain[:1] == ["compose"]:
        return 3 if {"exec", "run"} & set(plain[1:]) else None
    return 2 if {"exec", "run"} & set(plain) else None


def _after(words: Sequence[str], index: int, own: int, letters: str) -> tuple[int, int]:
    """The index after the options of a program and after its own words, and how many of these are missing."""
    while index < len(words):
        word = words[index]
        if word == "--":
            return index + 1, own
        if word.startswith("-") and len(word) > 1:
            is_named = word in _WITH_VALUE if word.startswith("--") else word[-1] in letters
            takes_value = "=" not in word and (letters == _ANY or is_named)
            is_value = takes_value and index + 1 < len(words) and not words[index + 1].startswith("-")
            index += 2 if is_value else 1
        elif _ASSIGNMENT.match(word) or _VARIABLE.match(word) or word[:1].isdigit():
            own -= not _ASSIGNMENT.match(word) and own > 0
            index += 1
        elif own:
            own -= 1
            index += 1
        else:
            break
    return index, own
