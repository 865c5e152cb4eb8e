"""How far an engine has started, from the lines that it prints."""

from __future__ import annotations

from firesteel.engines.logs.data import EngineRow, MarkRow, Stage, engine_rows
from firesteel.launch import EngineName
from firesteel.values import Value


class StartProgress(Value):
    """What one line reports: the stage, and how much of it is done where the line counts."""

    stage: Stage
    words: str
    done: int | None = None
    total: int | None = None
    unit: str | None = None
    """What `done` and `total` count; None with a total: percent."""

    @property
    def share(self) -> float | None:
        """How much of the stage is done, 0 to 1."""
        if self.done is None or not self.total:
            return None
        return min(1.0, self.done / self.total)

    def __str__(self) -> str:
        if self.done is None or not self.total:
            return self.words
        return f"{self.words}, " + (
            f"{self.done} of {self.total} {self.unit}" if self.unit else f"{self.done} %"
        )


def start_progress(engine: EngineName, line: str, version: str | None = None) -> StartProgress | None:
    """What the engine is doing, if this line tells; with `version`, only lines that this release prints."""
    for row in engine_rows()[engine].marks:
        match = row.match(line) if row.applies_to(version) else None
        if match:
            return _progress(row, match.groupdict())
    return None


def _progress(row: MarkRow, captured: dict[str, str | None]) -> StartProgress:
    if captured.get("percent"):
        return StartProgress(row.stage, row.words, int(captured["percent"] or 0), 100)
    done, total = captured.get("done"), captured.get("total")
    if done is None or total is None:
        return StartProgress(row.stage, row.words)
    return StartProgress(row.stage, row.words, int(done), int(total), row.unit)


def stages(engine: EngineName) -> tuple[Stage, ...]:
    """The stages of a start, in their order."""
    return engine_rows()[engine].stages


def find_version(row: EngineRow, line: str) -> str | None:
    """The version of the engine, if this line names it."""
    return next((match["version"] for pattern in row.version if (match := pattern.match(line))), None)
