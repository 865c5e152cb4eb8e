"""Tool calls: identifiers where an API has none, and the pieces of a stream put together."""

from __future__ import annotations

from firesteel.gateway.translate.values import Json, Untranslatable, tool_calls

MAX_ARGUMENT_BYTES = 4 * 1024 * 1024
"""Of all calls of an answer."""
MAX_CALLS = 1000


class ToolIds:
    """Each call gets a number; a result belongs to the first call without one, of its name if it has one."""

    def __init__(self) -> None:
        self._open: list[tuple[str, str]] = []
        self._count = 0

    def call(self, name: str, given: object = None) -> str:
        self._count += 1
        call_id = given if isinstance(given, str) and given else f"call_{self._count}"
        self._open.append((call_id, name))
        return call_id

    def result(self, name: str, given: object = None) -> str:
        """litellm sends the id with the result and not with the call: then the order decides."""
        ids = [call_id for call_id, _ in self._open]
        if given in ids:
            at = ids.index(str(given))
        else:
            named = (at for at, (_, called) in enumerate(self._open) if called == name)
            at = next(named, 0)
        if not self._open:
            return given if isinstance(given, str) and given else f"call_{max(1, self._count)}"
        return self._open.pop(at)[0]


class ToolCallDeltas:
    """The calls of an answer, from the pieces of a chat stream."""

    def __init__(self) -> None:
        self._calls: dict[int, tuple[str, str, list[str]]] = {}
        self._bytes = 0

    def take(self, delta: Json) -> None:
        for index, new_id, new_name, piece in tool_calls(delta):
            name, call_id, arguments = self._calls.setdefault(index, ("", "", []))
            self._calls[index] = (name or new_name, call_id or new_id, arguments)
            arguments.append(piece)
            self._bytes += len(piece)
            if self._bytes > MAX_ARGUMENT_BYTES or len(self._calls) > MAX_CALLS:
                raise Untranslatable("the engine called tools with too many arguments")

    def whole(self) -> list[tuple[str, str, str]]:
        """Id, name and arguments of each."""
        return [
            (call_id or f"call_{index}", name, "".join(arguments))
            for index, (name, call_id, arguments) in sorted(self._calls.items())
        ]
