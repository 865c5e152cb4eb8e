// Try it: a small chat with figures, the same as curl and Python, and two models side by side.

import { events, request, savedKey } from "./api.js";
import { attribute, copyable, field, h, options, put, select, show } from "./dom.js";
import { NONE, count, rate, seconds } from "./format.js";

export function create(app) {
  const prompt = h("textarea", { name: "prompt", rows: "3", required: true });
  prompt.value = "Say hello in one short sentence.";
  const maxTokens = h("input", { type: "number", name: "max_tokens", min: "1", value: "256" });
  const temperature = h("input", { type: "number", name: "temperature", min: "0", max: "2", step: "0.1", value: "0.7" });
  const isTwo = h("input", { type: "checkbox", name: "two", onchange: () => { show(panes[1].node, isTwo.checked); code(); } });
  const send = h("button", { class: "primary" }, "Send");
  const stop = h("button", { type: "button", disabled: true, onclick: () => panes.forEach((pane) => pane.stop()) }, "Stop");
  const fresh = h("button", { type: "button", onclick: () => { panes.forEach((pane) => pane.clear()); code(); } }, "New chat");
  const curl = copyable("curl");
  const python = copyable("Python");
  const panes = [pane(app, "Model", () => code()), pane(app, "Second model", () => code())];
  show(panes[1].node, false);
  const form = h("form", { class: "panel" },
    field("Message (Enter sends it, Shift+Enter begins a line)", prompt),
    h("div", { class: "filters" }, field("Tokens at most", maxTokens), field("Temperature", temperature),
      h("label", { class: "check" }, isTwo, h("span", {}, "Two models side by side"))),
    h("div", { class: "row" }, send, stop, fresh));
  const node = h("div", { class: "view" }, h("h1", {}, "Try it"),
    h("div", { class: "columns even" }, panes.map((each) => each.node)), form,
    h("section", { class: "panel" }, h("h2", {}, "The same request in your code"), h("div", { class: "columns" }, curl.node, python.node)));

  const settings = () => ({ max_tokens: Number(maxTokens.value) || 256, temperature: Number(temperature.value) });

  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    if (send.disabled || !prompt.value.trim()) return;
    send.disabled = true;
    stop.disabled = false;
    const text = prompt.value;
    prompt.select(); // the next message replaces it
    await Promise.all(panes.filter((each) => !each.node.hidden).map((each) => each.send(text, settings())));
    send.disabled = false;
    stop.disabled = true;
    code();
  });
  for (const control of [prompt, maxTokens, temperature]) control.addEventListener("input", code);
  prompt.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    form.requestSubmit();
  });

  function code() {
    const key = savedKey() ? "$FIRESTEEL_KEY" : "";
    const messages = panes[0].messagesWith(prompt.value); // the whole conversation, as it will be sent
    const body = { model: panes[0].model(), messages, ...settings(), stream: true };
    const quoted = JSON.stringify(body, null, 1).replaceAll("'", "'\\''");
    put(curl.code, `curl ${location.origin}/v1/chat/completions \\\n${key ? `  -H "Authorization: Bearer ${key}" \\\n` : ""}  -H 'Content-Type: application/json' -d '${quoted}'`);
    put(python.code, `import os\nfrom openai import OpenAI\n\nclient = OpenAI(base_url=${JSON.stringify(`${location.origin}/v1`)}, api_key=${key ? 'os.environ["FIRESTEEL_KEY"]' : '"none"'})\nstream = client.chat.completions.create(\n    model=${JSON.stringify(body.model)},\n    messages=${pythonMessages(messages)},\n    max_tokens=${body.max_tokens},\n    temperature=${body.temperature},\n    stream=True,\n)\nfor chunk in stream:\n    if chunk.choices:\n        print(chunk.choices[0].delta.content or "", end="", flush=True)\n`);
  }

  let wanted = null; // by the address, until the first state has it
  return {
    node,
    show(params) {
      wanted = params.model ?? null;
      this.update(app.state);
      code();
    },
    hide() {},
    update(state) {
      if (!state) return;
      panes.forEach((each, at) => each.update(state, at));
      if (!wanted) return;
      panes[0].choose(wanted);
      wanted = null;
      code();
    },
  };
}

/** A list of messages in Python, one a line if there are several. */
function pythonMessages(messages) {
  const lines = messages.map(({ role, content }) => `{"role": ${JSON.stringify(role)}, "content": ${JSON.stringify(content)}}`);
  return lines.length < 2 ? `[${lines.join("")}]` : `[\n        ${lines.join(",\n        ")},\n    ]`;
}

/** What `finish_reason` says of an answer that ended. */
const ENDS = {
  stop: "complete",
  length: "cut off: it reached the limit of tokens or the end of the context",
  content_filter: "cut off by the server's filter",
  tool_calls: "complete: it calls a tool",
};

function endText(reason, isDone, whole, thoughts) {
  if (!reason && !isDone) return "broke off: the stream ended early";
  if (!reason) return whole ? "complete, says the server; it gives no reason" : "complete, without text";
  const text = ENDS[reason] ?? `ended: ${reason}`;
  return whole ? text : thoughts ? `${text}; only thinking, no answer` : `${text}, without text`;
}

function pane(app, label, onchange) {
  const model = select("model", [], () => { onchange(); });
  const said = h("div", { class: "chat", role: "log", "aria-label": `${label}: conversation`, tabindex: "0" });
  const empty = h("p", { class: "message" }, "Nothing said yet.");
  const status = h("p", { class: "message", role: "status" });
  const figures = ["First token", "Tokens/s", "Tokens in", "Tokens out", "Total"].map((title) => [title, h("dd", {}, NONE)]);
  const node = h("section", { class: "panel" }, field(label, model), said, status,
    h("dl", { class: "figures" }, figures.map(([title, value]) => h("div", {}, h("dt", {}, title), value))));
  said.append(empty);
  let messages = [];
  let running = null;

  function bubble(role) {
    const text = h("p");
    empty.remove();
    said.append(h("div", { class: `said ${role}` }, h("span", { class: "small" }, role === "user" ? "You" : model.value), text));
    said.scrollTop = said.scrollHeight;
    return text;
  }

  /** What the model thinks before it answers, above the answer. */
  function thinkingIn(answer) {
    const text = h("div", { class: "thoughts" });
    answer.before(h("details", { open: true }, h("summary", { class: "small" }, "Thinking"), text));
    return text;
  }

  async function send(content, settings) {
    messages.push({ role: "user", content });
    bubble("user").textContent = content;
    const answer = bubble("assistant");
    const began = performance.now();
    let first = null;
    let last = null;
    let chunks = 0;
    let usage = null;
    let whole = "";
    let thoughts = "";
    let reason = null;
    let isDone = false;
    let thinking = null;
    running = new AbortController();
    put(status, "waiting for the first token …");
    status.className = "message";
    const tell = () => {
      const tokens = usage?.completion_tokens ?? (chunks || null);
      const values = [first && seconds((first - began) / 1000, 3), first && last > first && tokens > 1 ? rate((tokens - 1) / ((last - first) / 1000)) : null, usage ? count(usage.prompt_tokens) : null, count(tokens), first && seconds((performance.now() - began) / 1000, 2)];
      figures.forEach(([, node_], at) => put(node_, values[at] ?? NONE));
    };
    tell(); // the figures of the last message are gone
    try {
      const json = { model: model.value, messages, ...settings, stream: true, stream_options: { include_usage: true } };
      const response = await request("/v1/chat/completions", { method: "POST", json, signal: running.signal });
      for await (const { event, data } of events(response)) {
        if (event === ":") { if (!first && data) put(status, data); continue; }
        if (data === "[DONE]") { isDone = true; continue; } // up to its end: whoever leaves before counts as a client that left
        const chunk = JSON.parse(data);
        if (chunk.error) throw new Error(chunk.error.message);
        usage = chunk.usage ?? usage;
        const delta = chunk.choices?.[0]?.delta ?? {};
        reason = chunk.choices?.[0]?.finish_reason ?? reason;
        const piece = delta.content ?? "";
        const thought = delta.reasoning_content ?? delta.reasoning ?? "";
        if (piece || thought) {
          last = performance.now();
          first ??= last;
          chunks += 1;
          put(status, piece ? "answering" : "thinking");
          if (thought) {
            thinking ??= thinkingIn(answer);
            thoughts += thought;
            thinking.append(thought);
          }
          if (piece) { whole += piece; answer.append(piece); }
          said.scrollTop = said.scrollHeight;
          tell();
        }
      }
      messages.push({ role: "assistant", content: whole });
      const text = endText(reason, isDone, whole, thoughts);
      put(status, text);
      if (!text.startsWith("complete")) status.className = "message bad";
    } catch (error) {
      if (error.name === "AbortError") { put(status, "stopped"); messages.push({ role: "assistant", content: whole }); }
      else { put(status, error.message); status.className = "message bad"; messages.pop(); }
    } finally {
      running = null;
      tell();
    }
  }

  return {
    node,
    send,
    model: () => model.value,
    messagesWith: (content) => [...messages, { role: "user", content }],
    choose(name) { if ([...model.options].some((option) => option.value === name)) model.value = name; },
    stop: () => running?.abort(),
    clear() {
      running?.abort();
      messages = [];
      said.replaceChildren(empty);
      put(status, "");
      figures.forEach(([, value]) => put(value, NONE));
    },
    update(state, at) {
      const isFirst = !model.options.length;
      const before = model.value;
      options(model, state.models.filter((each) => each.phase !== "cannot").map((each) => [each.name, `${each.name} (${each.phase})`]));
      if (isFirst && at && model.options.length > at) model.selectedIndex = at;
      if (model.value !== before) onchange();
      attribute(model, "disabled", model.options.length ? null : true);
    },
  };
}
