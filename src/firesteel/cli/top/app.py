"""The running `top`: a thread asks the gateway, this one owns the terminal and the keys.

    TopApp(client, console, client.state()).run()

A gateway that hangs never blocks a key. Whatever ends it (q, Ctrl-C, a signal, an error), the terminal is
then as it was: no alternate screen, the cursor shown, its modes restored. Ctrl-Z suspends it the same way.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import termios
import threading
import time
import tty
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType

from rich.console import Console
from rich.text import Text

from firesteel.cli.top.client import Action, Curves, GatewayClient, RequestQuery, Snapshot
from firesteel.cli.top.frame import ASCII, PANELS, RANGES, UNICODE, Glyphs, Selection, frame, load_question
from firesteel.errors import FiresteelError
from firesteel.gateway.state import GatewayState, ModelStatus
from firesteel.values import replace

_REFRESH_S = 1.0
_CURVES_S = 5.0
_LOG_LINES = 400
_ESCAPE_S = 0.05
_SLOWER = (None, 10.0, 60.0)
_ARROWS = {b"\x1b[A": "up", b"\x1b[B": "down", b"\x1b[5~": "page up", b"\x1b[6~": "page down"}
_ARROWS |= {b"\x1bOA": "up", b"\x1bOB": "down"}
_KEYS = {"k": "up", "j": "down", "\t": "tab", "\x04": "q", "\x1b": "escape"}


class TopApp:
    def __init__(self, client: GatewayClient, console: Console, state: GatewayState) -> None:
        """`state` is shown first."""
        self._client, self._console = client, console
        self._glyphs = glyphs_of(console)
        self._chosen = Selection(state.models[0].name if state.models else "")
        self._snapshot = Snapshot(client.url, time.time(), state)
        self._asked: ModelStatus | None = None
        """The model of the question that is shown."""
        self._ends = threading.Event()
        self._wake_fetcher = threading.Event()
        self._suspended = False
        self._drawn = ""
        self._read_fd, self._write_fd = os.pipe()
        os.set_blocking(self._write_fd, False)

    def run(self) -> None:
        fetcher = threading.Thread(target=self._fetch, name="top-fetch", daemon=True)
        try:
            with self._signals(), self._terminal():
                fetcher.start()
                while not self._ends.is_set():
                    self._suspend_if_asked()
                    self._draw()
                    self._wait()
        finally:
            self._ends.set()
            self._wake_fetcher.set()
            if fetcher.is_alive():
                fetcher.join(_REFRESH_S)
            if not fetcher.is_alive():  # it writes to the pipe
                os.close(self._read_fd)
                os.close(self._write_fd)

    # --- the terminal ---

    @contextmanager
    def _terminal(self) -> Iterator[None]:
        self._saved = termios.tcgetattr(sys.stdin.fileno())
        self._enter()
        try:
            yield
        finally:
            self._leave()

    def _enter(self) -> None:
        tty.setcbreak(sys.stdin.fileno())
        self._write("\x1b[?1049h\x1b[?25l\x1b[?7l")
        self._drawn = ""

    def _leave(self) -> None:
        with suppress(OSError):  # a terminal that was closed
            self._write("\x1b[?7h\x1b[?25h\x1b[?1049l")
        with suppress(termios.error):
            termios.tcsetattr(sys.stdin.fileno(), termios.TCSADRAIN, self._saved)

    @contextmanager
    def _signals(self) -> Iterator[None]:
        """A new size and Ctrl-Z wake the loop."""
        old_fd = signal.set_wakeup_fd(self._write_fd, warn_on_full_buffer=False)
        old = {number: signal.getsignal(number) for number in (signal.SIGWINCH, signal.SIGTSTP)}
        signal.signal(signal.SIGWINCH, lambda number, frame: None)
        signal.signal(signal.SIGTSTP, self._on_suspend)
        try:
            yield
        finally:
            signal.set_wakeup_fd(old_fd)
            for number, handler in old.items():
                signal.signal(number, handler)

    def _on_suspend(self, number: int, frame: FrameType | None) -> None:
        self._suspended = True

    def _suspend_if_asked(self) -> None:
        if not self._suspended:
            return
        self._suspended = False
        self._leave()
        signal.signal(signal.SIGTSTP, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGTSTP)
        # Here again after `fg`.
        signal.signal(signal.SIGTSTP, self._on_suspend)
        self._enter()

    def _draw(self) -> None:
        """Nothing is sent if nothing changed: over ssh every byte counts."""
        width, height = os.get_terminal_size(sys.stdout.fileno())
        lines = frame(self._snapshot, self._chosen, width, height, self._glyphs)
        # Erased first: at the end of a full line the cursor still stands on its last character.
        drawn = "\r\n".join(f"\x1b[K{self._styled(line)}" for line in lines)
        if drawn != self._drawn:
            self._drawn = drawn
            self._write(f"\x1b[H{drawn}\x1b[J")

    def _styled(self, line: Text) -> str:
        with self._console.capture() as capture:
            self._console.print(line, end="", no_wrap=True, crop=False, overflow="ignore", soft_wrap=True)
        return capture.get()

    def _write(self, text: str) -> None:
        sys.stdout.write(text)
        sys.stdout.flush()

    # --- keys ---

    def _wait(self) -> None:
        """Until a key, a signal, or something new from the gateway."""
        ready, _, _ = select.select([sys.stdin, self._read_fd], [], [], _REFRESH_S)
        if self._read_fd in ready:
            os.read(self._read_fd, 4096)
        if sys.stdin in ready:
            data = os.read(sys.stdin.fileno(), 256)
            if not data:  # the terminal is gone
                self._ends.set()
            if data == b"\x1b" and select.select([sys.stdin], [], [], _ESCAPE_S)[0]:
                data += os.read(sys.stdin.fileno(), 16)
            for key in keys(data):
                self._press(key)

    def _press(self, key: str) -> None:
        if self._asked is not None:
            model, self._asked = self._asked, None
            self._chosen = replace(self._chosen, message="")
            if key == "y":
                self._change(model, "load")
            return
        self._chosen = replace(self._chosen, message="")
        actions: dict[str, Callable[[], None]] = {
            "q": self._ends.set, "up": lambda: self._move(-1), "down": lambda: self._move(1),
            "l": self._load, "u": self._unload, "p": self._pin, "tab": self._next_panel,
            "page up": lambda: self._scroll(-1), "page down": lambda: self._scroll(1),
            "s": self._next_slower, "b": lambda: self._days(1), "f": lambda: self._days(-1),
        }  # fmt: skip
        if key in actions:
            actions[key]()
        elif key in ("1", "2", "3"):
            self._choose(range_name=RANGES[int(key) - 1])
        elif key == "m":
            self._choose(is_one_model=not self._chosen.is_one_model, panel="requests", scroll=0)
        elif key in ("?", "h"):
            self._choose(shows_help=not self._chosen.shows_help)
        elif key == "escape":
            self._choose(shows_help=False)

    def _choose(self, **changes: object) -> None:
        self._chosen = replace(self._chosen, **changes)
        self._wake_fetcher.set()

    def _move(self, by: int) -> None:
        models = self._snapshot.state.models
        names = [model.name for model in models]
        if names:
            at = names.index(self._chosen.model) if self._chosen.model in names else 0
            self._choose(model=names[max(0, min(len(names) - 1, at + by))], scroll=0)

    def _next_panel(self) -> None:
        panel = PANELS[(PANELS.index(self._chosen.panel) + 1) % len(PANELS)]
        self._choose(panel=panel, scroll=0, shows_help=False)

    def _scroll(self, pages: int) -> None:
        """A log is read from its end: page up goes to older lines."""
        by = -8 * pages if self._chosen.panel == "log" else 8 * pages
        count = len(self._snapshot.log if self._chosen.panel == "log" else self._snapshot.requests)
        self._choose(scroll=max(0, min(max(0, count - 1), self._chosen.scroll + by)))

    def _next_slower(self) -> None:
        slower_s = _SLOWER[(_SLOWER.index(self._chosen.slower_s) + 1) % len(_SLOWER)]
        self._choose(slower_s=slower_s, panel="requests", scroll=0)

    def _days(self, by: int) -> None:
        self._choose(days_back=max(0, self._chosen.days_back + by), panel="requests", scroll=0)

    def _selected(self) -> ModelStatus | None:
        models = self._snapshot.state.models
        return next((model for model in models if model.name == self._chosen.model), None)

    def _load(self) -> None:
        model, memory = self._selected(), self._snapshot.state.memory
        if model is None:
            return
        if model.why_not or model.phase == "cannot":
            why = model.why_not or model.why or (model.health.text if model.health else "")
            self._choose(message=f"{model.name} cannot be loaded: {why}")
        elif model.phase != "off":
            self._choose(message=f"{model.name} is {model.phase} already")
        elif question := load_question(model, memory.ceiling_bytes, memory.loaded_bytes):
            self._asked = model
            self._choose(message=question)
        else:
            self._change(model, "load")

    def _unload(self) -> None:
        model = self._selected()
        if model is None:
            return
        if model.phase == "off" and not model.requested:
            self._choose(message=f"{model.name} is not loaded")
        elif model.pinned and model.phase != "loading":
            self._choose(message=f"{model.name} is pinned, so it stays loaded; p unpins it")
        else:
            self._change(model, "unload")

    def _pin(self) -> None:
        if model := self._selected():
            self._change(model, "unpin" if model.pinned else "pin")

    def _change(self, model: ModelStatus, action: Action) -> None:
        """In a separate thread: the gateway answers at once, or hangs."""
        is_cancel = action == "unload" and model.phase in ("loading", "off")
        said = f"asked the gateway to {'cancel the load of' if is_cancel else action} {model.name}"
        if action == "unload" and model.busy:
            said += f"; it first finishes {model.busy} requests"
        if action in ("pin", "unpin"):
            said += "; `pinned` in the service file keeps it so"

        def ask() -> None:
            try:
                self._client.change(model.name, action)
                text = said
            except FiresteelError as error:
                text = f"{error.what}{f'; next: {error.next}' if error.next else ''}"
            self._choose(message=text)
            self._wake()

        threading.Thread(target=ask, name="top-ask", daemon=True).start()

    # --- the gateway ---

    def _fetch(self) -> None:
        """The thread that asks. What it shows is replaced as a whole."""
        curves, curves_at, range_name = Curves(), float("-inf"), ""
        while not self._ends.is_set():
            self._wake_fetcher.clear()
            chosen, now = self._chosen, time.monotonic()
            try:
                state = self._client.state()
                if not any(model.name == chosen.model for model in state.models) and state.models:
                    self._chosen = chosen = replace(self._chosen, model=state.models[0].name)
                if now - curves_at >= _CURVES_S or chosen.range_name != range_name:
                    curves, curves_at, range_name = (
                        self._client.curves(chosen.range_name),
                        now,
                        chosen.range_name,
                    )
                snapshot = Snapshot(self._client.url, time.time(), state, curves)
                self._snapshot = self._with_panel(snapshot, chosen)
            except FiresteelError as error:
                self._snapshot = replace(self._snapshot, problem=error.what)
            self._wake()
            self._wake_fetcher.wait(_REFRESH_S)

    def _with_panel(self, snapshot: Snapshot, chosen: Selection) -> Snapshot:
        if chosen.panel == "log" and chosen.model:
            return replace(snapshot, log=self._client.log(chosen.model, _LOG_LINES), log_of=chosen.model)
        if chosen.panel == "requests":
            until = end_of_day(time.time(), chosen.days_back) if chosen.days_back else None
            query = RequestQuery(chosen.model if chosen.is_one_model else None, chosen.slower_s, until)
            return replace(snapshot, requests=self._client.requests(query))
        return snapshot

    def _wake(self) -> None:
        with suppress(BlockingIOError, OSError):
            os.write(self._write_fd, b".")


def glyphs_of(console: Console) -> Glyphs:
    """ASCII where the terminal's encoding has no blocks."""
    return UNICODE if (console.encoding or "").lower().replace("-", "") == "utf8" else ASCII


def keys(data: bytes) -> Iterator[str]:
    """What a terminal sent as the names of keys; unknown sequences are left out."""
    while data:
        arrow = next((sequence for sequence in _ARROWS if data.startswith(sequence)), None)
        if arrow:
            yield _ARROWS[arrow]
            data = data[len(arrow) :]
        elif data.startswith((b"\x1b[", b"\x1bO")) and len(data) > 2:
            end = next((i for i, byte in enumerate(data[2:], 2) if 0x40 <= byte <= 0x7E), len(data) - 1)
            data = data[end + 1 :]
        else:
            char = chr(data[0])
            yield _KEYS.get(char, char)
            data = data[1:]


def end_of_day(now: float, days_back: int) -> float:
    """The local midnight that ended the day this many days back."""
    today = time.localtime(now)
    return time.mktime((today.tm_year, today.tm_mon, today.tm_mday - days_back + 1, 0, 0, 0, 0, 0, -1)) - 1
