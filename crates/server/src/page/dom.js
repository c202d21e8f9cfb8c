"use strict";
// Elements, the clipboard, and requests to the daemon.

const $ = (id) => document.getElementById(id);

const make = (name, text, kind) => {
  const node = document.createElement(name);
  if (text !== undefined) node.textContent = text;
  if (kind) node.className = kind;
  return node;
};

const button = (text, kind, act) => {
  const node = make("button", text, kind);
  node.type = "button";
  node.addEventListener("click", act);
  return node;
};

// The clipboard of a page that came over plain HTTP from another machine is reached by a selection only.
async function copy(text, from) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    const box = make("textarea", text);
    document.body.append(box);
    box.select();
    document.execCommand("copy");
    box.remove();
    from.focus();
  }
  const before = from.textContent;
  from.textContent = "Copied";
  setTimeout(() => { from.textContent = before; }, 1500);
}

const copier = (text) => button("Copy", "plain small", (event) => copy(text(), event.currentTarget));

// An error of the daemon or of the connection: a message, and a hint on what to do.
class Failure extends Error {
  constructor({message, hint, code}) {
    super(message);
    Object.assign(this, {hint, code});
  }
}

// What this tab stores until it is closed; nothing in a browser whose user forbids it.
const tab = {
  get(key) {
    try { return sessionStorage.getItem(`orind-${key}`) ?? ""; } catch { return ""; }
  },
  set(key, value) {
    try { sessionStorage.setItem(`orind-${key}`, value); } catch { /* It lasts until a reload. */ }
  },
};

let token = tab.get("token");

async function call(path, options = {}) {
  const headers = {...options.headers};
  if (token) headers.Authorization = `Bearer ${token}`;
  let response;
  try {
    response = await fetch(path, {...options, headers});
  } catch (error) {
    if (error.name === "AbortError") throw error;
    const hint = "check that it runs, and that this browser still reaches it";
    throw new Failure({message: "the daemon does not answer", hint, code: "unreachable"});
  }
  if (response.ok) return response;
  if (response.status === 401 && !$("asked").open) $("asked").showModal();
  const reply = await response.json().catch(() => null);
  throw new Failure(reply?.error ?? {message: `the daemon answers ${response.status}`});
}

const post = (path, body, signal) => call(path, {
  method: "POST", headers: {"Content-Type": "application/json"}, body: JSON.stringify(body), signal,
});

// Server-sent events of a response, as `{event, data}`.
async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  for (;;) {
    const {value, done} = await reader.read().catch((error) => {
      if (error.name === "AbortError") throw error;
      throw new Failure({message: "the connection to the daemon broke"});
    });
    if (done) return;
    text += value;
    for (let end; (end = text.indexOf("\n\n")) >= 0; text = text.slice(end + 2)) {
      const lines = text.slice(0, end).split("\n");
      const field = (name) => lines.filter((line) => line.startsWith(`${name}:`))
        .map((line) => line.slice(name.length + 1).trimStart()).join("\n");
      const data = field("data");
      if (data) yield {event: field("event"), data};
    }
  }
}
