"""An honest server without a model: it speaks in sentences that are made here, and keeps to the API exactly.

It knows a few facts, finds a password in a long prompt, obeys schemas, stop strings, limits, seeds and system
prompts, calls tools, and counts its tokens. So whatever `verify` asks is answered, without a recording, and a
fault is the only thing that is wrong. It says that it is vLLM, or llama.cpp with a model of eight billion
parameters: of one as able, the checks expect facts.
"""

# ruff: noqa: E501, RUF001 - sentences of several languages
from __future__ import annotations

import hashlib
import json
import math
import random
import re
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Literal

from tests.run.adversary.change import Json
from tests.run.adversary.honest import add_reasoning, streamed_call

MODEL = "able-8b"
_TOKEN = re.compile(r" ?[A-Za-z0-9_]{1,6}|[^\x00-\x7f]|[!-/:-@\[-`{-~]{1,4}|[\x00-\x7f]")
_TEMPLATE_TOKENS = 4
"""Of each message."""

Language = Literal["en", "de", "fr", "es", "ru", "zh"]

_SUBJECTS = {
    "en": ("a careful reader", "the old teacher", "every student", "a good engineer", "the first builder",
           "a patient child", "the whole town", "an honest trader", "the next visitor", "a young doctor"),
    "de": ("Ein guter Lehrer", "Das Buch auf dem Tisch", "Die ganze Stadt", "Jeder Schüler", "Ein ruhiges Kind",
           "Der alte Meister", "Die Frau am Fenster", "Ein junger Arzt"),
    "fr": ("Un bon lecteur", "La vieille dame", "Chaque élève", "Le premier maçon", "Un enfant patient",
           "Toute la ville", "Le jeune médecin", "La gardienne du phare"),
    "es": ("Un buen lector", "La vieja maestra", "Cada alumno", "El primer constructor", "Un niño paciente",
           "Toda la ciudad", "El joven médico", "La mujer de la casa"),
    "ru": ("Хороший учитель", "Старый мастер", "Каждый ученик", "Молодой врач", "Весь город", "Сосед из деревни",
           "Честный купец", "Ребёнок у окна", "Первый строитель", "Хозяйка дома"),
    "zh": ("一位好老师", "每个学生", "年轻的医生", "整个城市", "这位老师傅", "窗边的孩子", "邻村的商人", "第一批建筑工"),
}  # fmt: skip
_VERBS = {
    "en": ("knows that it can be explained with", "learns about it from", "would compare it to",
           "has seen how it changes", "writes about it in", "keeps a record of it for", "asks what it means for",
           "was surprised by what it did to", "can describe it by"),
    "de": ("weiß, dass man es mit", "lernt es durch", "erklärt es gern mit", "vergleicht es oft mit",
           "schreibt darüber in"),
    "fr": ("sait que l'on peut l'expliquer avec", "apprend beaucoup de", "le compare souvent à",
           "en parle dans", "se demande ce que cela change pour"),
    "es": ("sabe que se puede explicar con", "aprende mucho de", "lo compara con", "escribe sobre ello en",
           "pregunta qué significa para"),
    "ru": ("знает, что это можно объяснить через", "часто сравнивает это с тем, что есть", "видит в этом",
           "пишет об этом, вспоминая", "учится этому и любит", "рассказывает всем про", "и сегодня ищет в этом"),
    "zh": ("知道这可以用来说明", "从中学到了很多关于", "常常把它比作", "在书里写过", "今天还在寻找", "喜欢给别人讲", "慢慢明白了"),
}  # fmt: skip
_OBJECTS = {
    "en": ("a simple drawing of its parts", "the work of many hands", "a list of small steps", "an ordinary day",
           "the people who live with it", "what was there before", "a letter to a friend", "the tools on a bench",
           "the number of things that it does", "a story that everyone has heard"),
    "de": ("einem einfachen Bild und vielen Worten", "der Arbeit von vielen Händen", "einer Liste von Schritten",
           "dem, was vorher war", "den Menschen, die damit leben", "einem Brief an die Freunde"),
    "fr": ("un dessin simple et des mots", "le travail de plusieurs mains", "une liste de petites étapes",
           "les gens qui vivent avec", "ce qui était là avant", "une lettre pour les amis"),
    "es": ("un dibujo simple y las palabras", "el trabajo de muchas manos", "una lista de pasos",
           "la gente que vive con ello", "lo que había antes", "una carta para los amigos"),
    "ru": ("простой рисунок и слова", "работу многих рук", "список шагов и дел", "людей, которые с этим живут",
           "обычный день", "письмо к другу", "то, что было раньше", "инструменты на столе", "старую сказку"),
    "zh": ("一张简单的图和一些话", "许多人的工作", "一步一步的方法", "以前的生活和现在的生活", "写给朋友的信", "桌上的工具",
           "平常的一天", "人人听过的故事", "和它一起生活的人"),
}  # fmt: skip
_ENDS = {
    "en": ("", ", because that is how it works", ", which takes some time", ", and this is easy to see",
           ", although not all agree", " when the day is over", ", as it should be", " in most of the cases"),
    "de": ("", ", weil es so ist", ", und das ist nicht schwer", ", wie man es auch sonst sieht"),
    "fr": ("", ", parce que c'est ainsi", ", et ce n'est pas difficile", ", comme on le voit dans la vie"),
    "es": ("", ", porque es así", ", y no es difícil", ", como se ve en la vida"),
    "ru": ("", ", потому что это так", ", и это не трудно"),
    "zh": ("", "，因为就是这样的", "，这并不难"),
}  # fmt: skip
_FIRST = {
    "en": "{0} is a thing that many people use, and it has been with them for a long time.",
    "de": "{0} ist eine Sache, die viele Menschen benutzen, und das schon seit langer Zeit.",
    "fr": "{0} est une chose que les gens utilisent beaucoup, et cela depuis longtemps.",
    "es": "{0} es una cosa que mucha gente usa, y así ha sido desde hace mucho tiempo.",
    "ru": "{0} это вещь, которую многие люди используют, и так было уже давно.",
    "zh": "{0}是很多人都在使用的东西，而且已经用了很长的时间了。",
}
_SUM = {"en": "{0} is {1}.", "de": "{0} ist {1}.", "fr": "{0} font {1}.", "es": "{0} es igual a {1}.",
        "ru": "{0} будет {1}.", "zh": "{0}等于{1}。"}  # fmt: skip
_HOT = {"en": "The opposite of hot is cold.", "de": "Das Gegenteil von heiß ist kalt.",
        "fr": "Le contraire de chaud est froid.", "es": "Lo contrario de caliente es frío.",
        "ru": "Противоположность горячего это холодное.", "zh": "热的反义词是冷。"}  # fmt: skip
_SKY = {"en": "The sky is blue on a clear day.", "de": "Der Himmel ist an einem klaren Tag blau.",
        "fr": "Le ciel est bleu par temps clair.", "es": "El cielo es azul en un día claro.",
        "ru": "Небо в ясный день голубое.", "zh": "晴天的天空是蓝色的。"}  # fmt: skip
_TOPICS = {
    "animal": "cat kitten dog napping sleeps sofa couch", "money": "bank interest rates borrowing money expensive",
    "weather": "rain flooded storm streets roads water town", "bread": "bread yeast dough rise baked",
    "state": "parliament vote budget", "stars": "telescope launched picture",
}  # fmt: skip
_DIMENSION = 384


def tokens_of(text: str) -> list[str]:
    return _TOKEN.findall(text)


def _seed(*parts: object) -> int:
    return int.from_bytes(hashlib.sha256(repr(parts).encode()).digest()[:8], "big")


@dataclass(slots=True)
class Speaker:
    flavour: Literal["vllm", "llamacpp"] = "vllm"
    language: Language = "en"
    is_sure: bool = False
    """A model that says the same at every temperature, and knows it."""
    style: Literal["plain", "emoji", "markdown", "short"] = "plain"
    context: int = 8192
    asked: list[Json] = field(default_factory=list)
    samples: int = 0

    def fresh(self) -> Speaker:
        return Speaker(self.flavour, self.language, self.is_sure, self.style, self.context)

    def restart(self) -> None:
        self.samples = 0

    # --- what a server says of itself ---

    def get(self, path: str) -> tuple[int, Any]:
        if path.endswith("/models"):
            row: Json = {"id": MODEL, "object": "model", "created": 1794776663}
            if self.flavour == "vllm":
                row |= {"owned_by": "vllm", "root": MODEL, "max_model_len": self.context}
            else:
                row |= {"owned_by": "llamacpp"}
                row["meta"] = {"n_ctx": self.context, "n_params": 8_000_000_000, "n_embd": _DIMENSION}
            return 200, {"object": "list", "data": [row]}
        if path.endswith("/props") and self.flavour == "llamacpp":
            return 200, {"chat_template_caps": {"supports_tool_calls": True, "supports_tools": True}}
        if path.endswith("/health"):
            return 200, {"status": "ok"}
        return 404, {"error": {"message": "Not Found", "code": 404}}

    def post(self, path: str, request: Json, reasoning: bool = False) -> tuple[int, Any]:
        if path.endswith("/tokenize"):
            known = tokens_of(request["prompt" if self.flavour == "vllm" else "content"])
            numbers = [_seed(token) % 100_000 for token in known]
            return 200, ({"count": len(known)} if self.flavour == "vllm" else {}) | {"tokens": numbers}
        if path.endswith("/embeddings"):
            return 200, self._embeddings(request)
        if not path.endswith("/chat/completions"):
            return 404, {"error": {"message": "Not Found", "code": 404}}
        self.asked.append(request)
        prompt_tokens = sum(
            len(tokens_of(_content(message))) + _TEMPLATE_TOKENS for message in request["messages"]
        )
        limit = request.get("max_completion_tokens") or request.get("max_tokens") or 4096
        if prompt_tokens + 1 > self.context:
            words = f"the prompt has {prompt_tokens} tokens, more than the context of {self.context}"
            return 400, {"error": {"message": words, "code": 400, "type": "exceed_context_size_error"}}
        limit = min(limit, self.context - prompt_tokens)
        if request.get("tools") and self._calls(request):
            return 200, self._tool_call(request, prompt_tokens)
        answer = self._answer(self._text(request), request, prompt_tokens, limit)
        if reasoning:
            add_reasoning(answer)
        return 200, answer

    # --- what it says ---

    def _text(self, request: Json) -> str:
        messages: list[Json] = request["messages"]
        schema = request.get("response_format", {}).get("json_schema", {}).get("schema")
        if schema:
            return json.dumps(_instance(schema), ensure_ascii=False)
        system = " ".join(_content(m) for m in messages if m["role"] == "system")
        last = messages[-1]
        if last["role"] == "tool":
            return f"The tool says {_content(last)}, so that is how it is."
        prompt = _content(last)
        heat = request.get("temperature", 1)
        variant: object = 0
        if heat >= 0.7 and not self.is_sure:
            self.samples += 1
            variant = request.get("seed", f"unseeded {self.samples}")
        known = self._known(prompt, "\n".join(map(_content, messages)))
        said = known or self._essay(prompt, variant)
        if system and (exact := re.search(r"(?:exactly|only) the (?:one )?word (\w+)", system)):
            return exact[1]
        if system:
            said = f"{_voice(system)} {said}"
        return said

    def _known(self, prompt: str, conversation: str) -> str | None:
        if echo := re.fullmatch(r"Repeat: (.*)", prompt, re.DOTALL):
            return echo[1]
        if asked := re.search(r"password of the ([\w ]+?)\?", prompt):
            found = re.search(rf"password of the {asked[1]} is ([\w-]+)", conversation)
            return found[1] if found else "The text does not say it."
        if formula := re.search(r"(\d+) ?([+*x]) ?(\d+)", prompt):
            one, sign, other = formula.groups()
            result = int(one) + int(other) if sign == "+" else int(one) * int(other)
            return _SUM[self.language].format(f"{one} {sign} {other}", result)
        if "opposite of hot" in prompt:
            return _HOT[self.language]
        if re.search(r"colou?r is the sky", prompt):
            return _SKY[self.language]
        return None

    def _essay(self, prompt: str, variant: object) -> str:
        """Sentences about the topic: other ones for another prompt, or for another seed."""
        language, words = self.language, re.findall(r"[A-Za-z]{4,}", prompt)
        topic = words[-1].capitalize() if words else "This"
        rng = random.Random(_seed(prompt, variant))
        first = [] if variant else [_FIRST[language].format(topic)]
        parts = [
            (subject, verb, thing)
            for subject in _SUBJECTS[language]
            for verb in _VERBS[language]
            for thing in _OBJECTS[language]
        ]
        rng.shuffle(parts)
        stop = "。" if language == "zh" else "."
        gap = "" if language == "zh" else " "
        sentences = [
            f"{subject[0].upper()}{subject[1:]}{gap}{verb}{gap}{thing}{rng.choice(_ENDS[language])}{stop}"
            for subject, verb, thing in parts[:70]
        ]
        if self.style == "short":
            return (first or sentences)[0]
        if self.style == "emoji":
            sentences = [f"{one} {rng.choice('🙂🚀💡📚🖥')}" for one in sentences]
        if self.style == "markdown":
            titles = [f"\n\n## {one.split(',')[0].rstrip('.')}\n\n" for one in sentences[50:]]
            listed = [f"- **{one.split()[0]}** {one}\n" for one in sentences[:50]]
            sentences = [title + "".join(listed[at::20]) for at, title in enumerate(titles)]
        return gap.join([*first, *sentences])

    # --- how it says it ---

    def _answer(self, text: str, request: Json, prompt_tokens: int, limit: int) -> Any:
        stops = request.get("stop") or []
        ends = [text.find(stop) for stop in ([stops] if isinstance(stops, str) else stops) if stop in text]
        if ends:
            text = text[: min(ends)]
        said = tokens_of(text)
        finish = "length" if len(said) > limit else "stop"
        said = said[:limit]
        usage = {
            "prompt_tokens": prompt_tokens,
            "completion_tokens": len(said) + (finish == "stop" and len(said) < limit),
        }
        usage["total_tokens"] = sum(usage.values())
        scores = [self._logprob(one, other) for one, other in pairwise(["", *said])]
        is_scored = bool(request.get("logprobs"))
        base: Json = {"id": "chatcmpl-1", "created": 1794776663, "model": request.get("model", MODEL)}
        if request.get("stream"):
            return self._chunks(base, said, scores if is_scored else [], finish, usage, request)
        choice: Json = {
            "index": 0,
            "message": {"role": "assistant", "content": "".join(said)},
            "finish_reason": finish,
        }
        if is_scored:
            choice["logprobs"] = {"content": scores}
        return base | {"object": "chat.completion", "choices": [choice], "usage": usage}

    def _logprob(self, before: str, token: str) -> Json:
        share = (_seed(before, token) % 1000) / 1000
        logprob = -0.0002 * share if self.is_sure else math.log(0.35 + 0.6 * share)
        row = {"token": token, "logprob": logprob, "bytes": list(token.encode())}
        return row | {"top_logprobs": [dict(row)]}

    def _chunks(
        self, base: Json, said: list[str], scores: list[Json], finish: str, usage: Json, request: Json
    ) -> list[Json]:
        base = base | {"object": "chat.completion.chunk"}
        deltas: list[Json] = [
            {"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}
        ]
        for at, token in enumerate(said):
            choice: Json = {"index": 0, "delta": {"content": token}, "finish_reason": None}
            if scores:
                choice["logprobs"] = {"content": [scores[at]]}
            deltas.append(choice)
        deltas.append({"index": 0, "delta": {}, "finish_reason": finish})
        chunks: list[Json] = [base | {"choices": [choice]} for choice in deltas]
        if (request.get("stream_options") or {}).get("include_usage"):
            chunks.append(base | {"choices": [], "usage": usage})
        return chunks

    def _calls(self, request: Json) -> bool:
        choice, last = request.get("tool_choice", "auto"), request["messages"][-1]
        if choice == "none" or last["role"] == "tool":
            return False
        return choice != "auto" or "tool" in _content(last).lower()

    def _tool_call(self, request: Json, prompt_tokens: int) -> Any:
        tools, prompt = [tool["function"] for tool in request["tools"]], _content(request["messages"][-1])
        tool = next((tool for tool in tools if tool["name"] in prompt), tools[0])
        names = re.findall(r"\b[A-Z][a-z]{3,}\b", prompt) or ["What"]
        place = next((name for name in names if name not in ("What", "Which", "Tell")), names[0])
        filled = {
            name: place if one.get("type") == "string" else 3
            for name, one in tool["parameters"]["properties"].items()
        }
        arguments = json.dumps(filled)
        call: Json = {
            "id": "call_7f3a",
            "type": "function",
            "function": {"name": tool["name"], "arguments": arguments},
        }
        written = len(tokens_of(arguments)) + 4
        body: Json = {
            "id": "chatcmpl-1",
            "object": "chat.completion",
            "created": 1794776663,
            "model": request.get("model", MODEL),
            "choices": [
                {
                    "index": 0,
                    "message": {"role": "assistant", "content": None, "tool_calls": [call]},
                    "finish_reason": "tool_calls",
                }
            ],
            "usage": {
                "prompt_tokens": prompt_tokens + 60,
                "completion_tokens": written,
                "total_tokens": prompt_tokens + 60 + written,
            },
        }
        return streamed_call(body, call, request) if request.get("stream") else body

    def _embeddings(self, request: Json) -> Json:
        texts = request["input"] if isinstance(request["input"], list) else [request["input"]]
        rows = [
            {"index": at, "object": "embedding", "embedding": _vector(text)} for at, text in enumerate(texts)
        ]
        used = sum(len(tokens_of(text)) for text in texts)
        return {
            "object": "list",
            "model": MODEL,
            "data": rows,
            "usage": {"prompt_tokens": used, "total_tokens": used},
        }


def _content(message: Json) -> str:
    content = message.get("content") or ""
    if isinstance(content, list):
        return " ".join(part.get("text", "") for part in content)
    return str(content)


def _voice(system: str) -> str:
    voices = (
        "Well then.",
        "Gladly, my friend.",
        "With pleasure and in short.",
        "As the stars have it.",
        "Aye.",
    )
    return voices[_seed(system) % len(voices)]


def _instance(schema: Json) -> Any:
    if "enum" in schema:
        return schema["enum"][0]
    if "const" in schema:
        return schema["const"]
    kind = schema.get("type")
    if kind == "object":
        return {name: _instance(one) for name, one in schema.get("properties", {}).items()}
    if kind == "array":
        return [_instance(schema.get("items", {"type": "string"}))]
    return {"integer": 3, "number": 2.5, "boolean": True, "null": None}.get(str(kind), "a word")


def _vector(text: str) -> list[float]:
    """Of length 1: by topic, and a little by its words."""
    words = re.findall(r"[a-z]+", text.lower())
    total = [0.0] * _DIMENSION
    for weight, seeds in (
        (0.15, words),
        (1.0, [t for t, of in _TOPICS.items() if set(of.split()) & set(words)]),
    ):
        for one in seeds:
            rng = random.Random(_seed(one))
            total = [x + weight * rng.gauss(0, 1) for x in total]
    norm = math.sqrt(sum(x * x for x in total)) or 1.0
    return [x / norm for x in total]
