"""A client of chat completions itself: chunks are written as they are."""

from __future__ import annotations

from firesteel.gateway.translate.values import ClientApi, Json, TranslationContext, dump, member


class ChatChunkWriter:
    """Sends the counts at the end only if the client asked for them."""

    def __init__(self, context: TranslationContext) -> None:
        self._context = context

    def take(self, chunk: Json) -> bytes:
        if not chunk.get("choices") and not self._context.wants_usage:
            return b""
        return b"data: %b\n\n" % dump(chunk | {"model": self._context.model})

    def end(self) -> bytes:
        return b"data: [DONE]\n\n"


def wants_usage(request: Json) -> bool:
    return member(request, "stream_options").get("include_usage") is True


CHAT_CLIENT = ClientApi(
    lambda request: request, lambda response, context: response | {"model": context.model}, ChatChunkWriter
)
