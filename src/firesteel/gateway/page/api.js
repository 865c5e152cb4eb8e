// Requests with the user's key, and event streams that reconnect. EventSource sends no header, so streams are fetched.

const SLOT = "firesteel.key";
const SILENCE_MS = 40_000; // the gateway says something every 15 s
const FIRST_PAUSE_MS = 1000;
const LAST_PAUSE_MS = 10_000;

export class ApiError extends Error {
  constructor(status, kind, text) {
    super(text);
    this.status = status;
    this.kind = kind;
  }
}

export function savedKey() {
  return sessionStorage.getItem(SLOT) ?? localStorage.getItem(SLOT) ?? "";
}

export function saveKey(key, isKept) {
  forgetKey();
  if (key) (isKept ? localStorage : sessionStorage).setItem(SLOT, key);
}

export function forgetKey() {
  sessionStorage.removeItem(SLOT);
  localStorage.removeItem(SLOT);
}

export async function request(path, { method = "GET", body, signal, json } = {}) {
  const headers = {};
  const key = savedKey();
  if (key) headers.Authorization = `Bearer ${key}`;
  if (json !== undefined) headers["Content-Type"] = "application/json";
  let response;
  try {
    response = await fetch(path, {
      method, headers, signal, body: json === undefined ? body : JSON.stringify(json),
      cache: "no-store", credentials: "omit", redirect: "error",
    });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError(0, "unreachable", "The gateway does not answer.");
  }
  if (!response.ok) throw await failure(response);
  return response;
}

async function failure(response) {
  const text = await response.text().catch(() => "");
  try {
    const { error } = JSON.parse(text);
    return new ApiError(response.status, error.code ?? error.type ?? "error", error.message);
  } catch {
    return new ApiError(response.status, "error", text.slice(0, 300) || `The gateway answered ${response.status}.`);
  }
}

export async function get(path, options) {
  return (await request(path, options)).json();
}

/** A firesteel command's document. A command that failed prints one, too. */
export async function commandDocument(path, options) {
  const found = await get(path, options);
  if (String(found.document).startsWith("firesteel.error/")) {
    throw new ApiError(200, found.kind, found.next ? `${found.message}. Next: ${found.next}` : found.message);
  }
  return found;
}

/** Server-sent events of a response: {event, data}; a comment has the event `:`. */
export async function* events(response, onbytes = () => {}) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  let event = "message";
  let data = [];
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      onbytes();
      const lines = (rest + value).split(/\r\n|\n|\r/);
      rest = lines.pop();
      for (const line of lines) {
        if (line === "") {
          if (data.length) yield { event, data: data.join("\n") };
          event = "message";
          data = [];
        } else if (line.startsWith(":")) {
          yield { event: ":", data: line.slice(1).trim() };
        } else if (line.startsWith("data:")) {
          data.push(line.slice(line[5] === " " ? 6 : 5));
        } else if (line.startsWith("event:")) {
          event = line.slice(6).trim();
        }
      }
    }
  } finally {
    await reader.cancel().catch(() => {});
  }
}

/**
 * Follow a stream until `stop()`: it is opened again when it ends, breaks or falls silent.
 * `handlers`: event(name, data), up(), down(error, pause_ms); a refused key (401, 403, 404) ends it: refused(error).
 */
export function follow(path, handlers) {
  const whole = new AbortController();
  run();
  return { stop: () => whole.abort() };

  async function run() {
    let pause = FIRST_PAUSE_MS;
    while (!whole.signal.aborted) {
      let failed = new ApiError(0, "ended", "The connection was closed.");
      const one = new AbortController();
      const stop = () => one.abort();
      whole.signal.addEventListener("abort", stop);
      let timer = setTimeout(stop, SILENCE_MS);
      try {
        const response = await request(path, { signal: one.signal });
        handlers.up?.();
        pause = FIRST_PAUSE_MS;
        const alive = () => { clearTimeout(timer); timer = setTimeout(stop, SILENCE_MS); };
        for await (const { event, data } of events(response, alive)) handlers.event(event, data);
      } catch (error) {
        if ([401, 403, 404].includes(error.status)) {
          clearTimeout(timer);
          if (!whole.signal.aborted) handlers.refused?.(error);
          return;
        }
        if (error.name !== "AbortError") failed = error;
      } finally {
        clearTimeout(timer);
        whole.signal.removeEventListener("abort", stop);
        one.abort();
      }
      if (whole.signal.aborted) return;
      handlers.down?.(failed, pause);
      await new Promise((resolve) => setTimeout(resolve, pause));
      pause = Math.min(LAST_PAUSE_MS, pause * 1.6);
    }
  }
}
