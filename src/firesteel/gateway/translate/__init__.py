"""Requests and responses of one API as those of another: Ollama, Anthropic, OpenAI Responses and chat.

Pure: JSON values and bytes in, JSON values and bytes out; the time is an argument. The HTTP server
(`http/translation.py`) sends and receives them.

**One format in the middle.** OpenAI's chat completions is what every engine speaks, so all others are
translated to and from it: a client's API needs a request to chat and answers from chat (`ClientApi`), a
server's API a request from chat and answers to chat (`ServerApi`). So four APIs do not need twelve pairs. A
request whose client and server speak the same API is not translated and does not come here.

    client                  in the middle                 server
    ollama.py          ─┐                             ┌─  (chat itself)
    messages_client.py ─┼─ chat request, response,   ─┼─  messages_server.py
    responses_client.py ┘  chunks of a stream         └─  responses_server.py

**Streams** are translated event by event (`stream.py`): a server's reader makes chat chunks of its events, a
client's writer makes its own events of chunks. Both keep only what the format needs: which block is open, and
the arguments of tool calls where a client expects them whole. A stream that ends before its last event gets
an error and never a proper end.

**Nothing is dropped silently that changes the answer.** A field that the other API cannot express is refused
with its name (`Untranslatable`). Ignored are only fields about storage, billing and caching (`metadata`,
`store`, `cache_control`), which do not change what the model says.

**Templates** take less than the APIs allow: `shape.py` gives a conversation the one shape that all of them
take. Requests that are translated to chat get it always, others when a server has refused theirs.

**Thinking** is `reasoning_content` (llama.cpp, SGLang, DeepSeek) or `reasoning` (vLLM) in the middle. Only
Anthropic's servers sign their thinking blocks; in translated ones the signature is empty.

**Bounds.** A body is parsed, unlike those that are only forwarded, and can then be 30 times as large.
`values.parse_object` estimates this before it parses, and one event or answer of a server is bounded too.

Facts about the APIs, seen 2026-11-16: https://github.com/ollama/ollama/blob/main/docs/api.md and the `ollama`
package 0.6.3; https://docs.claude.com/en/api/messages and the `anthropic` package;
https://platform.openai.com/docs/api-reference and the `openai` package.
"""
