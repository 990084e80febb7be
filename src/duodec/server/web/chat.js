"use strict";
/* The conversation: asks the server, shows what streams, and keeps everything in this browser. */
const $ = id => document.getElementById(id);
const view = $("chat");
const KEY = "duodec.key";
const SAVED = ["temperature", "top_p", "top_k", "min_p", "seed", "max_tokens", "method", "max_draft", "system"];
const SAVE_EVERY_MS = 500, NEAR_END_PX = 60, RETRY_MS = 1000, LEAST_GAIN = 1.05, NOTABLE = 0.5;
const WAITING = "Your message goes out when this answer ends. Escape takes it back.";
const NEEDS_KEY = "This server asks for an API key. Whoever runs it has one for you.";
const WRONG_KEY = "The server does not know this API key. Check it and send your message again.";
const MOST_ATTACHED = 200_000;  // bytes: more fits no context
const TO_TRY = ["Write a short poem about the sea.", "Write a Python function that reverses a list, and explain it.", "Explain to a child why the sky is blue."];
const SOURCES = [["model", "from the draft model"], ["earlier", "from earlier text"], ["own", "one in each forward pass"]];

let chat = Chats.fresh();  // the one that is shown
let others = [];  // the last one first
let hasDraftModel = true;
let numContext = 0;  // tokens that a conversation may have; 0: not known yet
let busyCores = 0;  // by other programs of the server's machine, when it was last looked at
let running = null;  // stops the answer that streams
let isQueued = false;  // a message waits for the answer to end
let isAsking = false;  // whether the server is there

// --- what the browser keeps

function read(store, name) { try { return store.getItem(name); } catch { return null; } }
function write(store, name, value) { try { store.setItem(name, value); } catch { /* full or forbidden: it works without */ } }
function save() { write(localStorage, CHAT, JSON.stringify(chat)); }
function kept(name) { try { return JSON.parse(read(localStorage, name)); } catch { return null; /* of another version */ } }
function restore() {
  const found = kept(OTHERS);
  others = (Array.isArray(found) ? found : []).map(Chats.adopt).filter(other => other.nodes.length);
  take(Chats.adopt(kept(CHAT)));
}

for (const id of SAVED) {
  const value = read(localStorage, "duodec." + id);
  if (value !== null) $(id).value = value;
  $(id).addEventListener("change", () => write(localStorage, "duodec." + id, $(id).value));
}
function paint() { document.documentElement.style.colorScheme = $("theme").value || "light dark"; }
$("theme").value = read(localStorage, "duodec.theme") || "";
$("theme").addEventListener("change", () => { write(localStorage, "duodec.theme", $("theme").value); paint(); });
paint();
$("key").value = read(sessionStorage, KEY) || "";
$("key").addEventListener("change", () => { write(sessionStorage, KEY, $("key").value); ready(); });

// --- what is shown

function make(name, kind, text = "") {
  const node = document.createElement(name);
  if (kind) node.className = kind;
  node.textContent = text;
  return node;
}
function put(kind, text = "") {
  const node = make("div", kind, text);
  view.append(node);
  view.scrollTop = view.scrollHeight;
  return node;
}
function button(word, label, run, kind = "quiet action") {
  const node = make("button", kind, word);
  node.setAttribute("type", "button");
  if (label) node.setAttribute("aria-label", label);
  node.addEventListener("click", run);
  return node;
}
/* The whole conversation anew; what can be done with a message follows it. */
function redraw() {
  view.replaceChildren();
  if (!chat.nodes.length) return empty();
  const path = Chats.path(chat);
  for (const at of path) {
    const message = chat.nodes[at], isUser = message.role === "user", isLast = at === path[path.length - 1];
    const node = put(isUser ? "message user" : "message assistant", isUser ? message.content : "");
    if (isUser) node.append(...(message.pictures || []).map((uri, i) => Pictures.image(uri, "picture " + (i + 1))));
    if (!isUser) { render(node, message); showFacts(message); }
    const can = put(isUser ? "can mine" : "can");
    branches(can, at);
    if (isUser) can.append(button("edit", "edit this message", idly(() => edit(at, node, can))));
    else can.append(copyButton(() => message.content, "copy the whole answer", "action"));
    if (!isUser && isLast) {
      if (message.isCut && message.asked) can.append(button("continue", "continue: the limit of tokens cut this answer", idly(() => goOn(message)), "action"));
      can.append(button("regenerate", "regenerate: another answer to the last message", idly(() => { chat.leaf = message.parent; redraw(); answer(); })));
    }
  }
}
function idly(run) { return () => { if (!running) run(); }; }
function empty() {
  const box = put("empty");
  box.append(make("p", "", "Nothing is sent anywhere but to this server. Tick “show drafts” to see what was drafted while the target computed. Three things to try:"));
  for (const words of TO_TRY) box.append(button(words, "", idly(() => ask(words)), "quiet try"));
}
/* Which of several versions of a message is shown, and the way to its neighbours. */
function branches(box, at) {
  const all = Chats.children(chat, chat.nodes[at].parent), number = all.indexOf(at);
  if (all.length < 2) return;
  const step = (words, label, other) => {
    const node = button(words, label, idly(() => { Chats.show(chat, all[other]); redraw(); save(); }));
    node.disabled = !(other in all);
    box.append(node);
  };
  step("‹", "the version before", number - 1);
  box.append(make("span", "count", number + 1 + " of " + all.length));
  step("›", "the next version", number + 1);
}
/* A message becomes a field; what is sent stands beside the old message, which stays. */
function edit(at, node, can) {
  const field = make("textarea", "editor");
  field.value = chat.nodes[at].content;
  field.setAttribute("aria-label", "Edit your message");
  const send = () => { const words = field.value.trim(); if (!words || running) return; const { pictures, parent } = chat.nodes[at]; chat.leaf = parent; redraw(); ask(words, pictures); };
  field.addEventListener("keydown", event => {
    if (event.key === "Escape") redraw();
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) { event.preventDefault(); send(); }
  });
  node.replaceChildren(field);
  can.replaceChildren(button("Cancel", "", redraw), button("Send", "", send, "action"));
  field.focus();
}
function render(node, message) {
  const isAtEnd = view.scrollHeight - view.scrollTop - view.clientHeight < NEAR_END_PX;
  node.replaceChildren(renderMarkdown(message.content, message.drafted));
  for (const box of node.querySelectorAll(".code")) box.append(copyButton(() => box.querySelector("code").textContent, "copy this code", "copy"));
  if (isAtEnd) view.scrollTop = view.scrollHeight;
}
function copyButton(text, label, kind) {
  const node = button("copy", label, async () => {
    try { await navigator.clipboard.writeText(text()); node.textContent = "copied"; } catch { node.textContent = "not allowed here"; }
  }, "quiet " + kind);
  return node;
}
/* How an answer went: its speed over plain decoding, its tokens by source, and figures. */
function showFacts({ facts }) {
  if (!facts) return;
  if (typeof facts === "string") { put("facts", facts); return; }
  const box = put("facts");
  if (facts.verdict) box.append(make("strong", "verdict", facts.verdict));
  box.append(legend(facts.sources), make("span", "", facts.words));
}
function legend(sources) {
  const box = make("span", "legend");
  const total = sources.reduce((sum, count) => sum + count, 0), own = sources[2];
  const bar = make("span", "bar");
  SOURCES.forEach(([kind, words], i) => {
    if (!sources[i]) return;
    const part = make("span", kind);
    part.style.flexGrow = String(sources[i] / total);
    part.setAttribute("title", sources[i] + " " + words);
    bar.append(part);
  });
  bar.setAttribute("aria-hidden", "true");
  box.append(make("span", "", total - own + " of " + total + " tokens came free"), bar);
  return box;
}
function forgetError() { for (const node of view.querySelectorAll(".error")) node.remove(); }
function askForKey(why) { $("why").textContent = why; $("ask").hidden = false; $("key").focus(); }
function grow() { const t = $("text"); t.style.height = "auto"; t.style.height = t.scrollHeight + 2 + "px"; }
function setText(text) { $("text").value = text; grow(); }
function queue(is) {
  isQueued = is;
  $("live").textContent = is ? WAITING : "";
}

// --- the list of chats

/* Goes on with another conversation. */
function take(other) {
  running?.abort();
  idle();
  chat = other;
  redraw();
  queue(false);
  keepAll();
}
function keepAll() {
  save();
  write(localStorage, OTHERS, JSON.stringify(others));
  list();
}
function list() {
  const words = $("find").value.trim().toLowerCase();
  const shown = [...(chat.nodes.length ? [chat] : []), ...others].filter(one => !words || Chats.has(one, words));
  $("chats").replaceChildren(...shown.map(entry));
  $("none").hidden = !words || shown.length > 0;
  $("export").hidden = !chat.nodes.length;
}
function entry(one) {
  const item = make("li"), title = Chats.title(one);
  const open = button(title, "", () => { if (one !== chat) { leave(); others = others.filter(other => other !== one); take(one); } drawer(false); }, "quiet open");
  if (one === chat) open.setAttribute("aria-current", "true");
  item.append(open, button("✎", "rename " + title, () => rename(item, one), "quiet"), button("✕", "delete " + title, () => remove(one), "quiet"));
  return item;
}
function leave() { if (chat.nodes.length) others.unshift(chat); }
function rename(item, one) {
  const field = make("input", "renamed");
  field.value = Chats.title(one);
  field.setAttribute("aria-label", "Name of the chat");
  const done = () => { one.title = field.value.trim(); keepAll(); };
  field.addEventListener("keydown", event => { if (event.key === "Enter") done(); if (event.key === "Escape") list(); });
  item.replaceChildren(field, button("Save", "", done, "action"));
  field.focus();
}
function remove(one) {
  if (!confirm("Delete “" + Chats.title(one) + "” from this browser?")) return;
  others = others.filter(other => other !== one);
  if (one === chat) take(Chats.fresh()); else keepAll();
}
function drawer(is) {
  $("side").classList.toggle("open", is);
  $("menu").setAttribute("aria-expanded", String(is));
}
$("menu").addEventListener("click", () => {
  const is = $("menu").getAttribute("aria-expanded") !== "true";
  drawer(is);
  if (is) $("find").focus();
});
$("side").addEventListener("keydown", event => { if (event.key === "Escape") { drawer(false); $("menu").focus(); } });
$("find").addEventListener("input", list);

// --- what is done

$("tint").addEventListener("change", () => document.body.classList.toggle("tinted", $("tint").checked));
$("clear").addEventListener("click", () => { leave(); take(Chats.fresh()); drawer(false); $("text").focus(); });
$("export").addEventListener("click", () => {
  const said = Chats.messages(chat).map(({ role, content }) => ({ role, content }));  // as `duodec chat` loads it
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([JSON.stringify({ messages: said }, null, 1)], { type: "application/json" }));
  link.download = "duodec-chat.json";
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
});
$("import").addEventListener("click", () => $("imported").click());
$("imported").addEventListener("change", () => opened("imported", async file => {
  const found = JSON.parse(await file.text()), said = Array.isArray(found) ? found : found.messages;
  const one = Chats.adopt(Array.isArray(said) ? said : null);
  if (!one.nodes.length) throw new Error("no messages");
  const first = said.find(({ role }) => role === "system");
  if (first) $("system").value = first.content;
  leave();
  take(one);
  drawer(false);
}, "is no chat that was exported here or saved by “duodec chat”"));
$("attach").addEventListener("click", () => $("attached").click());
$("attached").addEventListener("change", () => opened("attached", async file => {
  if (Pictures.isOne(file)) return Pictures.add(file);
  if (file.size > MOST_ATTACHED) throw new Error("too large");
  const text = new TextDecoder("utf-8", { fatal: true }).decode(await file.arrayBuffer());
  if (text.includes("\0")) throw new Error("no text");
  const fence = "`".repeat(Math.max(3, ...(text.match(/`+/g) || []).map(run => run.length + 1)));
  setText(file.name + ":\n" + fence + "\n" + text.replace(/\n$/, "") + "\n" + fence + "\n\n" + $("text").value);
  $("text").focus();
}, "is no text of 200 kB at most, and no picture that this model sees"));
$("text").addEventListener("paste", event => {
  const pasted = [...(event.clipboardData?.files || [])].filter(Pictures.isOne);
  if (pasted.length) event.preventDefault();
  for (const file of pasted) use(file, Pictures.add, "is no picture that this model sees");
});
/* Does something with a file that was chosen, or says what is wrong with it. */
async function opened(id, run, fault) {
  const file = $(id).files[0];
  $(id).value = "";  // the same file may be chosen again
  if (file) await use(file, run, fault);
}
async function use(file, run, fault) {
  forgetError();
  try { await run(file); } catch { put("message error", file.name + " " + fault + ".").setAttribute("role", "alert"); }
}
$("text").addEventListener("input", grow);
$("text").addEventListener("keydown", event => {
  const isPhone = matchMedia("(pointer: coarse)").matches;
  if (event.key === "Escape" && isQueued) queue(false);
  if (event.key === "Enter" && !event.shiftKey && !isPhone && !event.isComposing) { event.preventDefault(); $("form").requestSubmit(); }
});
$("stop").addEventListener("click", () => { queue(false); running?.abort(); });
$("retry").addEventListener("click", () => { ready(); if ($("text").value.trim()) $("form").requestSubmit(); });
$("form").addEventListener("submit", event => {
  event.preventDefault();
  const text = $("text").value.trim();
  if (!text) return;
  if (running) { queue(true); return; }
  setText("");
  ask(text, Pictures.take());
});

function headers() {
  const key = $("key").value;
  return { "Content-Type": "application/json", ...(key ? { Authorization: "Bearer " + key } : {}) };
}
function number(id) { const text = $(id).value.trim(); return text === "" ? undefined : Number(text); }
/* What decides a text besides its messages. */
function settings() {
  return {
    model: $("pick").value || undefined,
    temperature: number("temperature"), top_p: number("top_p"), top_k: number("top_k"), min_p: number("min_p"),
    seed: number("seed"), max_tokens: number("max_tokens"),
    speculation: { show_drafted: true, method: $("method").value || undefined, max_draft: $("method").value === "ar" ? undefined : number("max_draft") },
    system: $("system").value.trim() || undefined,
  };
}
function body(asked, messages) {
  const { system, ...rest } = asked;
  const said = messages.map(message => ({ role: message.role, content: Pictures.content(message) }));
  return { messages: system ? [{ role: "system", content: system }, ...said] : said, stream: true, stream_options: { include_usage: true }, ...rest };
}

function ask(text, pictures = []) {
  if (!chat.nodes.length) view.replaceChildren();
  Chats.add(chat, { role: "user", content: text, ...(pictures.length ? { pictures } : {}) });
  save();
  const node = put("message user", text);
  node.append(...pictures.map((uri, i) => Pictures.image(uri, "picture " + (i + 1))));
  return answer(node, text);
}
/* One seed, one text: the same request with more room says the same again, quickly, and goes on. */
function goOn(message) {
  const asked = { ...message.asked, max_tokens: 2 * message.numTokens };
  chat.leaf = message.parent;
  redraw();
  return answer(null, "", asked);
}
/* Asks for an answer to the conversation as it stands. `typed` is what goes back where nothing comes. */
async function answer(typedNode = null, typed = "", asked = settings()) {
  const own = chat, request = body(asked, Chats.messages(own));
  look(asked.model);  // from here on, other programs count
  forgetError();
  const message = Chats.add(own, { role: "assistant", content: "", drafted: [], facts: "stopped" });
  const node = put("message assistant"), asking = new AbortController();
  busy(asking, asked.model);
  list();
  let first = 0, used = 0, last = null, savedAt = -Infinity, drawn = 0, failure = null;
  const isShown = () => own === chat;
  const draw = () => { drawn = 0; render(node, message); };
  try {
    const response = await fetch("v1/chat/completions", { method: "POST", headers: headers(), body: JSON.stringify(request), signal: asking.signal }).catch(error => { throw gone(error); });
    if (!response.ok) throw await refusal(response);
    $("ask").hidden = true;
    for await (const chunk of events(response.body)) {
      if (chunk.error) throw new Error(chunk.error.message);
      if (chunk.usage) used = chunk.usage.total_tokens;
      if (chunk.metrics) last = chunk;
      const choice = chunk.choices[0];
      if (!choice) continue;
      const said = choice.delta.content || "";
      message.isCut ||= choice.finish_reason === "length";
      if (said && !first) { first = performance.now(); if (isShown()) $("progress").hidden = true; }
      for (const part of choice.segments || (said ? [{ text: said, is_drafted: false }] : [])) add(message, part);
      if (said && !drawn && isShown()) drawn = requestAnimationFrame(draw);
      if (chunk.timings && !chunk.metrics && !isQueued && isShown()) live(chunk.timings, first);
      if (performance.now() - savedAt > SAVE_EVERY_MS && isShown()) { savedAt = performance.now(); save(); }
    }
    await look(asked.model);
    message.facts = last ? facts(last, message, used) : "";
    if (last) Object.assign(message, { asked: { ...asked, seed: last.duodec.seed }, numTokens: last.timings.predicted_n });
  } catch (error) {
    if (error.name !== "AbortError") failure = error;
  }
  if (drawn) cancelAnimationFrame(drawn);
  if (!isShown()) return;  // a new chat was begun meanwhile
  idle();
  end(message, failure, typedNode, typed);
  const goesOn = isQueued && !failure;
  queue(false);
  if (goesOn) $("form").requestSubmit();
}
function busy(asking, model) {
  running = asking;
  $("stop").hidden = false;
  $("send").textContent = "Send next";
  view.setAttribute("aria-busy", "true");
  $("live").textContent = "";
  $("progress").hidden = false;
  waiting(asking, model, performance.now());
}
function idle() {
  running = null;
  $("stop").hidden = $("progress").hidden = true;
  $("send").textContent = "Send";
  view.setAttribute("aria-busy", "false");
}
/* Until the first token: for what, and how long. */
async function waiting(asking, model, begin) {
  for (;;) {
    await new Promise(resolve => setTimeout(resolve, RETRY_MS));
    if (running !== asking || $("progress").hidden) return;
    let what = "reading the prompt";
    try {
      const { data } = await (await fetch("v1/models", { headers: headers() })).json();
      const one = data.find(each => each.id === model) || data[0];
      if (one.status && one.status.value !== "loaded") what = "loading " + one.id;
    } catch { /* the request itself will say */ }
    if (running === asking && !$("progress").hidden && !isQueued) $("live").textContent = what + " · " + Math.round((performance.now() - begin) / 1000) + " s";
  }
}

/* What stays of an answer that ended, was stopped, or broke off. */
function end(message, failure, typedNode, typed) {
  if (failure && message.content) message.facts = "broken off: " + failure.message;
  if (!message.content) {
    Chats.takeBack(chat);
    if (failure && typedNode) {  // it was not answered at all: the words go back to where they were typed
      const { pictures = [] } = chat.nodes[chat.leaf];
      Chats.takeBack(chat);
      if (pictures.length) Pictures.put([...pictures, ...Pictures.waiting]);
      const also = $("text").value;
      setText(also.trim() ? typed + "\n\n" + also : typed);
    }
    if (failure?.why) askForKey(failure.why);
  }
  redraw();
  if (!chat.nodes.length && failure) view.replaceChildren();
  if (!message.content && !failure && message.facts) put("facts", message.facts);
  if (failure) put("message error", failure.why || failure.message).setAttribute("role", "alert");
  if (failure && !failure.why) ready();  // it may be gone
  keepAll();
}
function add(message, part) {
  const from = message.content.length, to = from + part.text.length;
  message.content += part.text;
  if (!part.is_drafted || from === to) return;
  const before = message.drafted[message.drafted.length - 1];
  if (before && before[1] === from && before[2] === part.source) before[1] = to;
  else message.drafted.push(part.source ? [from, to, part.source] : [from, to]);
}
async function refusal(response) {
  let words = "the server answered " + response.status;
  try { words = (await response.json()).error.message; } catch { /* of a proxy: no JSON */ }
  const error = new Error(words);
  if (response.status === 401) error.why = $("key").value ? WRONG_KEY : NEEDS_KEY;
  return error;
}
/* A failure of the connection, in words that name the server. */
function gone(error) {
  if (error.name === "AbortError") return error;
  return new Error("the server at " + location.host + " does not answer");
}

/* Accepted tokens of the draft model, of earlier text, and the target's own ones. */
function bySource(counts) {
  const byModel = counts.draft_n_accepted_from_model ?? counts.draft_n_accepted;
  return [byModel, counts.draft_n_accepted - byModel, counts.predicted_n - counts.draft_n_accepted];
}
/* What drafting brought, in words; "" where it was not measured. A range where other programs kept cores busy, as the command
   line writes it. */
function verdict(counts, rate) {
  if (!counts.draft_n || !counts.plain_ms || !rate) return "";
  const gain = rate * counts.plain_ms / 1000;
  if (busyCores >= NOTABLE) return "about " + Math.floor(gain * 3.6) / 4 + " to " + Math.ceil(gain * 4.4) / 4 + " times plain decoding; other programs kept " + busyCores.toFixed(1) + " cores busy";
  if (gain >= LEAST_GAIN) return gain.toFixed(1) + "× plain decoding";
  return gain > 1 / LEAST_GAIN ? "about as fast as plain decoding: drafts bring little here" : gain.toFixed(2) + "× plain decoding: drafts do not pay here";
}
function numTokens({ predicted_n }) { return predicted_n + (predicted_n === 1 ? " token" : " tokens"); }
function live(counts, first) {
  const seconds = (performance.now() - first) / 1000, rate = seconds > 0.2 ? counts.predicted_n / seconds : 0;
  const words = [];
  if (rate) words.push(rate.toFixed(1) + " tokens/s");
  if (counts.draft_n) words.push(Math.round(100 * counts.draft_n_accepted / counts.draft_n) + "% of " + counts.draft_n + " drafts accepted");
  if (counts.rounds) words.push((counts.predicted_n / counts.rounds).toFixed(2) + " tokens a forward pass");
  const gain = verdict(counts, rate), box = make("strong", "verdict", gain);
  $("live").replaceChildren(...(gain ? [box] : []), legend(bySource(counts)), make("span", "", words.join(" · ")));
}
function facts(chunk, message, used) {
  const m = chunk.metrics, t = chunk.timings, own = chunk.duodec;
  const words = [(message.isCut ? "cut off by the limit of " : "") + numTokens(t)];
  if (m.tokens_per_second) words.push(m.tokens_per_second.toFixed(1) + " tokens/s");
  words.push("first after " + Math.round(m.time_to_first_token_ms) + " ms");
  words.push(t.draft_n ? t.draft_n_accepted + " of " + t.draft_n + " drafts accepted" : "no drafts: " + whyNone(own.method));
  words.push(own.method, "seed " + own.seed);
  if (used && numContext) words.push("the context is " + Math.ceil(100 * used / numContext) + "% full (" + used + " of " + numContext + " tokens)");
  return { verdict: verdict(t, m.tokens_per_second), sources: bySource(t), words: words.join(" · ") };
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
      const { value, done } = await reader.read().catch(error => { throw gone(error); });
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

// --- the server

/* Asks until the server is there, and then what it serves. */
async function ready() {
  if (isAsking) return;
  isAsking = true;
  for (const begin = performance.now(); ; ) {
    try {
      const health = await (await fetch("health")).json();
      $("banner").hidden = true;
      if (health.status === "ok") break;
      $("model").textContent = health.status + " · " + Math.round((performance.now() - begin) / 1000) + " s";
      if (!running) $("progress").hidden = false;
    } catch {
      $("model").textContent = "no server";
      $("trouble").textContent = "The server at " + location.host + " does not answer. This page asks again every second.";
      $("banner").hidden = false;
    }
    await new Promise(resolve => setTimeout(resolve, RETRY_MS));
  }
  isAsking = false;
  if (!running) $("progress").hidden = true;
  const asked = await fetch("v1/models", { headers: headers() });
  if (asked.status === 401) return askForKey($("key").value ? WRONG_KEY : NEEDS_KEY);
  $("ask").hidden = true;
  const models = (await asked.json()).data, chosen = $("pick").value;
  $("pick").replaceChildren(...models.map(({ id }) => Object.assign(make("option", "", id), { value: id })));
  if (models.some(({ id }) => id === chosen)) $("pick").value = chosen;
  $("pick").hidden = models.length < 2;
  $("model").hidden = models.length > 1;
  await describe();
}

/* What other programs do on the server's machine, since the last look. */
async function look(model) {
  try {
    const props = await (await fetch("props?model=" + encodeURIComponent(model || ""), { headers: headers() })).json();
    busyCores = props.busy_cores || 0;
    numContext = props.n_ctx || 0;
  } catch { busyCores = 0; }
}
async function describe() {
  const name = encodeURIComponent($("pick").value);
  const props = await (await fetch("props?model=" + name, { headers: headers() })).json();
  const has = props.speculation.has_draft_model; // null of a model that is not loaded
  hasDraftModel = has === null || Boolean(has);
  Pictures.canSee = Boolean(props.capabilities?.includes("vision"));
  $("model").textContent = props.model + (has ? " with a draft model" : "");
}
$("pick").addEventListener("change", describe);
restore();
ready();
