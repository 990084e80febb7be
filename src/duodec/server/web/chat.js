"use strict";
/* The conversation: asks the server, shows what streams, and keeps everything in this browser. */
const $ = id => document.getElementById(id);
const chat = $("chat");
const CHAT = "duodec.chat", OTHERS = "duodec.chats", KEY = "duodec.key";
const SAVED = ["temperature", "top_p", "top_k", "min_p", "seed", "max_tokens", "method", "max_draft", "system"];
const SAVE_EVERY_MS = 500, NEAR_END_PX = 60;
const WAITING = "Your message goes out when this answer ends. Escape takes it back.";
const NEEDS_KEY = "This server asks for an API key. Whoever runs it has one for you.";
const WRONG_KEY = "The server does not know this API key. Check it and send your message again.";

/* [{ role, content, drafted?, facts? }]: `drafted` are the ranges of an answer that drafts supplied. */
let messages = [];
let others = [];  // earlier conversations, the last one first
let hasDraftModel = true;
let running = null;  // stops the answer that streams
let isQueued = false;  // a message waits for the answer to end

// --- what the browser keeps

function read(store, name) { try { return store.getItem(name); } catch { return null; } }
function write(store, name, value) { try { store.setItem(name, value); } catch { /* full or forbidden: it works without */ } }
function save() { write(localStorage, CHAT, JSON.stringify(messages)); }
function isMessage(m) { return m && ["user", "assistant"].includes(m.role) && typeof m.content === "string"; }
function kept(name) {
  try { const found = JSON.parse(read(localStorage, name)); return Array.isArray(found) ? found : []; } catch { return []; /* of another version */ }
}
function restore() {
  others = kept(OTHERS).filter(Array.isArray).map(chat => chat.filter(isMessage)).filter(chat => chat.length);
  take(kept(CHAT).filter(isMessage));
}

for (const id of SAVED) {
  const value = read(localStorage, "duodec." + id);
  if (value !== null) $(id).value = value;
  $(id).addEventListener("change", () => write(localStorage, "duodec." + id, $(id).value));
}
$("key").value = read(sessionStorage, KEY) || "";
$("key").addEventListener("change", () => { write(sessionStorage, KEY, $("key").value); ready(); });

// --- what is shown

function put(kind, text = "") {
  const node = document.createElement("div");
  node.className = kind;
  node.textContent = text;
  chat.append(node);
  chat.scrollTop = chat.scrollHeight;
  return node;
}
function show(message) {
  if (message.role === "user") return put("message user", message.content);
  const node = put("message assistant");
  render(node, message);
  if (message.facts) put("facts", message.facts);
  return node;
}
/* The whole conversation anew; what can be done with a message follows it. */
function redraw() {
  chat.replaceChildren();
  messages.forEach((message, at) => {
    show(message);
    if (message.role === "user") action("edit", "edit this message", () => { setText(cut(at).content); $("text").focus(); });
    else if (at === messages.length - 1 && at) action("regenerate", "regenerate: another answer to the last message", () => ask(cut(at - 1).content));
  });
}
function action(word, label, run) {
  const button = document.createElement("button");
  Object.assign(button, { type: "button", className: "quiet action", textContent: word });
  button.setAttribute("aria-label", label);
  button.addEventListener("click", () => { if (!running) run(); });
  chat.append(button);
  chat.scrollTop = chat.scrollHeight;
}
/* Ends the conversation before this message, and returns it. */
function cut(at) {
  const message = messages[at];
  messages = messages.slice(0, at);
  redraw();
  save();
  return message;
}
/* Goes on with another conversation. */
function take(other) {
  running?.abort();
  idle();
  messages = other;
  redraw();
  queue(false);
  save();
  write(localStorage, OTHERS, JSON.stringify(others));
  const list = $("chats");
  list.replaceChildren(option("", "earlier chats"), ...others.map((chat, at) => option(String(at), chat[0].content.slice(0, 40))));
  list.value = "";
  list.hidden = !others.length;
  $("export").hidden = $("delete").hidden = !messages.length;
}
function option(value, words) {
  const node = document.createElement("option");
  Object.assign(node, { value, textContent: words });
  return node;
}
function render(node, message) {
  const isAtEnd = chat.scrollHeight - chat.scrollTop - chat.clientHeight < NEAR_END_PX;
  node.replaceChildren(renderMarkdown(message.content, message.drafted));
  for (const box of node.querySelectorAll(".code")) box.append(copyButton(box));
  if (isAtEnd) chat.scrollTop = chat.scrollHeight;
}
function copyButton(box) {
  const button = document.createElement("button");
  button.type = "button";
  button.className = "quiet copy";
  button.textContent = "copy";
  button.addEventListener("click", async () => {
    try { await navigator.clipboard.writeText(box.querySelector("code").textContent); button.textContent = "copied"; } catch { button.textContent = "not allowed here"; }
  });
  return button;
}
function forgetError() { for (const node of chat.querySelectorAll(".error")) node.remove(); }
function askForKey(why) { $("why").textContent = why; $("ask").hidden = false; $("key").focus(); }
function grow() { const t = $("text"); t.style.height = "auto"; t.style.height = t.scrollHeight + 2 + "px"; }
function setText(text) { $("text").value = text; grow(); }
function queue(is) {
  isQueued = is;
  $("live").textContent = is ? WAITING : "";
}

// --- what is done

$("tint").addEventListener("change", () => document.body.classList.toggle("tinted", $("tint").checked));
$("clear").addEventListener("click", () => {
  if (messages.length) others.unshift(messages);
  take([]);
  $("text").focus();
});
$("chats").addEventListener("change", () => {
  if ($("chats").value === "") return;
  const [chosen] = others.splice(Number($("chats").value), 1);
  if (messages.length) others.unshift(messages);
  take(chosen);
});
$("delete").addEventListener("click", () => { if (confirm("Delete this conversation from this browser?")) take([]); });
$("export").addEventListener("click", () => {
  const said = messages.map(({ role, content }) => ({ role, content }));  // as `duodec chat` loads it
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([JSON.stringify({ messages: said }, null, 1)], { type: "application/json" }));
  link.download = "duodec-chat.json";
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
});
$("text").addEventListener("input", grow);
$("text").addEventListener("keydown", event => {
  const isPhone = matchMedia("(pointer: coarse)").matches;
  if (event.key === "Escape" && isQueued) queue(false);
  if (event.key === "Enter" && !event.shiftKey && !isPhone && !event.isComposing) { event.preventDefault(); $("form").requestSubmit(); }
});
$("stop").addEventListener("click", () => { queue(false); running?.abort(); });
$("form").addEventListener("submit", event => {
  event.preventDefault();
  const text = $("text").value.trim();
  if (!text) return;
  if (running) { queue(true); return; }
  setText("");
  ask(text);
});

function headers() {
  const key = $("key").value;
  return { "Content-Type": "application/json", ...(key ? { Authorization: "Bearer " + key } : {}) };
}
function number(id) { const text = $(id).value.trim(); return text === "" ? undefined : Number(text); }
function body() {
  const system = $("system").value.trim();
  const said = messages.map(({ role, content }) => ({ role, content }));
  return {
    messages: system ? [{ role: "system", content: system }, ...said] : said,
    model: $("pick").value || undefined, stream: true, stream_options: { include_usage: true },
    temperature: number("temperature"), top_p: number("top_p"), top_k: number("top_k"), min_p: number("min_p"),
    seed: number("seed"), max_tokens: number("max_tokens"),
    speculation: { show_drafted: true, method: $("method").value || undefined, max_draft: $("method").value === "ar" ? undefined : number("max_draft") },
  };
}

async function ask(text) {
  const own = messages, message = { role: "assistant", content: "", drafted: [], facts: "stopped" };
  forgetError();
  own.push({ role: "user", content: text });
  save();
  const asked = put("message user", text), node = put("message assistant"), asking = new AbortController();
  busy(asking);
  const request = body();
  own.push(message);
  let first = 0, last = null, savedAt = -Infinity, drawn = 0, failure = null;
  const draw = () => { drawn = 0; render(node, message); };
  try {
    const response = await fetch("v1/chat/completions", { method: "POST", headers: headers(), body: JSON.stringify(request), signal: asking.signal });
    if (!response.ok) throw await refusal(response);
    $("ask").hidden = true;
    for await (const chunk of events(response.body)) {
      if (chunk.error) throw new Error(chunk.error.message);
      if (chunk.metrics) last = chunk;
      const choice = chunk.choices[0];
      if (!choice) continue;
      const said = choice.delta.content || "";
      if (said && !first) first = performance.now();
      for (const part of choice.segments || (said ? [{ text: said, is_drafted: false }] : [])) add(message, part);
      if (said && !drawn && own === messages) drawn = requestAnimationFrame(draw);
      if (chunk.timings && !chunk.metrics && !isQueued && own === messages) live(chunk.timings, first);
      if (performance.now() - savedAt > SAVE_EVERY_MS && own === messages) { savedAt = performance.now(); save(); }
    }
    message.facts = last ? facts(last) : "";
  } catch (error) {
    if (error.name !== "AbortError") failure = error;
  }
  if (drawn) cancelAnimationFrame(drawn);
  if (own !== messages) return;  // a new chat was begun meanwhile
  end(own, message, text, { asked, node }, failure);
  idle();
  if (!failure) redraw();
  $("export").hidden = $("delete").hidden = !messages.length;
  const goesOn = isQueued && !failure;
  queue(false);
  if (goesOn) $("form").requestSubmit();
}
function busy(asking) {
  running = asking;
  $("stop").hidden = false;
  $("send").textContent = "Send next";
  chat.setAttribute("aria-busy", "true");
  $("live").textContent = "";
}
function idle() {
  running = null;
  $("stop").hidden = true;
  $("send").textContent = "Send";
  chat.setAttribute("aria-busy", "false");
}

/* What stays of an answer that ended, was stopped, or broke off. */
function end(own, message, text, nodes, failure) {
  if (failure && message.content) message.facts = "broken off: " + failure.message;
  if (message.content) {
    render(nodes.node, message);
    if (message.facts) put("facts", message.facts);
  } else {
    nodes.node.remove();
    own.pop();
    if (failure) {  // it was not answered at all: the words go back to where they were typed
      nodes.asked.remove();
      own.pop();
      const typed = $("text").value;
      setText(typed.trim() ? text + "\n\n" + typed : text);
      if (failure.why) askForKey(failure.why);
    } else if (message.facts) put("facts", message.facts);
  }
  if (failure) put("message error", failure.why || failure.message).setAttribute("role", "alert");
  save();
}
function add(message, part) {
  const from = message.content.length, to = from + part.text.length;
  message.content += part.text;
  if (!part.is_drafted || from === to) return;
  const before = message.drafted[message.drafted.length - 1];
  if (before && before[1] === from) before[1] = to;
  else message.drafted.push([from, to]);
}
async function refusal(response) {
  let words = "the server answered " + response.status;
  try { words = (await response.json()).error.message; } catch { /* of a proxy: no JSON */ }
  const error = new Error(words);
  if (response.status === 401) error.why = $("key").value ? WRONG_KEY : NEEDS_KEY;
  return error;
}

function live(counts, first) {
  const seconds = (performance.now() - first) / 1000;
  const words = [counts.predicted_n + " tokens"];
  if (seconds > 0.2) words.push((counts.predicted_n / seconds).toFixed(1) + " tokens/s");
  if (counts.draft_n) words.push(Math.round(100 * counts.draft_n_accepted / counts.draft_n) + "% of " + counts.draft_n + " drafts accepted");
  if (counts.rounds) words.push((counts.predicted_n / counts.rounds).toFixed(2) + " tokens a forward");
  $("live").textContent = words.join(" · ");
}
function facts(chunk) {
  const m = chunk.metrics, t = chunk.timings, own = chunk.duodec;
  const words = [t.predicted_n + " tokens"];
  if (m.tokens_per_second) words.push(m.tokens_per_second.toFixed(1) + " tokens/s");
  words.push("first after " + Math.round(m.time_to_first_token_ms) + " ms");
  words.push(t.draft_n ? t.draft_n_accepted + " of " + t.draft_n + " drafts accepted" : "no drafts: " + whyNone(own.method));
  words.push(own.method, "seed " + own.seed);
  return words.join(" · ");
}
function whyNone(method) {
  if (method === "ar") return "this method decodes plainly";
  return hasDraftModel ? "they would not have paid here" : "no draft model is loaded, and earlier text gave none";
}
async function* events(stream) {
  const reader = stream.pipeThrough(new TextDecoderStream()).getReader();
  let held = "";
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      held += value;
      const lines = held.split("\n");
      held = lines.pop();
      for (const line of lines) {
        if (!line.startsWith("data: ")) continue;
        const data = line.slice(6);
        if (data === "[DONE]") return;
        yield JSON.parse(data);
      }
    }
  } finally { reader.cancel().catch(() => {}); }
}
async function ready() {
  for (;;) {
    try {
      const health = await (await fetch("health")).json();
      if (health.status === "ok") break;
      $("model").textContent = health.status + " …";
    } catch { $("model").textContent = "no server"; }
    await new Promise(resolve => setTimeout(resolve, 1000));
  }
  const asked = await fetch("v1/models", { headers: headers() });
  if (asked.status === 401) return askForKey($("key").value ? WRONG_KEY : NEEDS_KEY);
  $("ask").hidden = true;
  const models = (await asked.json()).data;
  $("pick").replaceChildren(...models.map(model => option(model.id, model.id)));
  $("pick").hidden = models.length < 2;
  await describe();
}

async function describe() {
  const name = encodeURIComponent($("pick").value);
  const props = await (await fetch("props?model=" + name, { headers: headers() })).json();
  const has = props.speculation.has_draft_model; // null of a model that is not loaded
  hasDraftModel = has === null || Boolean(has);
  $("model").textContent = props.model + (has ? " with a draft model" : "");
}
$("pick").addEventListener("change", describe);
restore();
ready();
