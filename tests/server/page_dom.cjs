/* A document just good enough to run the page's scripts under Node, without a browser. */
"use strict";
const fs = require("fs"), path = require("path");
const WEB = path.join(__dirname, "..", "..", "src", "duodec", "server", "web");

class Text {
  constructor(words) { this.words = words; }
  get textContent() { return this.words; }
  get html() { return this.words.replace(/&/g, "&amp;").replace(/</g, "&lt;"); }
}
class Node {
  constructor(name) { Object.assign(this, { name, children: [], attributes: {}, className: "", value: "", hidden: false, checked: false, style: {}, listeners: {}, parent: null }); }
  append(...nodes) { for (const n of nodes) { if (n.name === "#fragment") this.append(...n.children); else { n.parent = this; this.children.push(n); } } }
  replaceChildren(...nodes) { this.children = []; this.append(...nodes); }
  remove() { this.parent.children = this.parent.children.filter(n => n !== this); }
  setAttribute(name, value) { this.attributes[name] = value; }
  getAttribute(name) { return this.attributes[name] ?? null; }
  appendChild(node) { this.append(node); return node; }
  cloneNode() { const own = Object.assign(new Node(this.name), { className: this.className, attributes: { ...this.attributes } }); own.append(...this.children.map(n => n.cloneNode ? n.cloneNode() : new Text(n.words))); return own; }
  get textContent() { return this.children.map(n => n.textContent).join(""); }
  set textContent(words) { this.children = words === "" ? [] : [new Text(words)]; }
  get html() {
    const kind = this.className ? ` class="${this.className}"` : "";
    const own = Object.entries(this.attributes).map(([k, v]) => ` ${k}="${v}"`).join("");
    const inner = this.children.map(n => n.html).join("");
    return this.name === "#fragment" ? inner : `<${this.name}${kind}${own}>${inner}</${this.name}>`;
  }
  get classList() { return { toggle: (name, is) => { this.className = is ? name : ""; } }; }
  querySelectorAll(selector) {
    const found = [], wanted = selector.slice(1);
    const walk = node => { for (const n of node.children || []) { if (n.className && n.className.split(" ").includes(wanted)) found.push(n); walk(n); } };
    walk(this);
    return found;
  }
  querySelector(name) { const walk = n => { for (const c of n.children || []) { if (c.name === name) return c; const f = walk(c); if (f) return f; } return null; }; return walk(this); }
  addEventListener(kind, listener) { (this.listeners[kind] ||= []).push(listener); }
  send(kind, event = {}) { for (const l of this.listeners[kind] || []) l({ preventDefault() {}, ...event }); }
  click() { this.send("click"); }
  focus() { global.document.active = this.id; }
  requestSubmit() { this.send("submit"); }
  get scrollHeight() { return 0; }
  get clientHeight() { return 0; }
}
class Store {
  constructor(kept = {}) { this.kept = kept; }
  getItem(name) { return name in this.kept ? this.kept[name] : null; }
  setItem(name, value) { this.kept[name] = String(value); }
}

/* The page, opened; `answer(request)` gives what fetch of a completion gives. */
function open({ answer, kept = {}, models = { status: 200, json: async () => ({ data: [{ id: "m" }] }) }, confirms = true, isGone = () => false, busy = 0, sees = false }) {
  const page = fs.readFileSync(path.join(WEB, "page.html"), "utf-8"), nodes = {};
  for (const [, name, id] of page.matchAll(/<(\w+)[^>]*?\bid="([^"]+)"/g)) nodes[id] = Object.assign(new Node(name), { id });
  for (const [, tag] of page.matchAll(/<\w+([^>]*\bhidden\b[^>]*)>/g)) nodes[/id="([^"]+)"/.exec(tag)[1]].hidden = true;
  global.document = {
    compatMode: "CSS1Compat", createElementNS: (_, n) => new Node(n),
    documentElement: new Node("html"), body: new Node("body"), createElement: n => new Node(n), createTextNode: w => new Text(w),
    createDocumentFragment: () => new Node("#fragment"), getElementById: id => nodes[id] || (() => { throw new Error("no #" + id); })(),
  };
  global.localStorage = new Store(kept);
  global.sessionStorage = new Store();
  global.confirm = () => confirms;
  const copied = [];
  Object.defineProperty(global, "navigator", { configurable: true, value: { clipboard: { writeText: async text => { copied.push(text); } } } });
  global.location = { host: "127.0.0.1:8000" };
  const exported = [];
  global.Blob = class { constructor(parts) { exported.push(parts.join("")); } };
  global.URL.createObjectURL = () => "blob:";
  global.URL.revokeObjectURL = () => {};
  global.matchMedia = () => ({ matches: false });
  global.requestAnimationFrame = draw => setTimeout(draw, 0);
  global.cancelAnimationFrame = clearTimeout;
  const asked = [];
  global.fetch = async (url, options = {}) => {
    if (isGone()) throw new TypeError("fetch failed");
    if (url === "health") return { json: async () => ({ status: "ok" }) };
    if (url.startsWith("props?model=")) return { json: async () => ({ model: "m", speculation: {}, busy_cores: busy, n_ctx: 1000, capabilities: sees ? ["completion", "vision"] : ["completion"] }) };
    if (url === "v1/models") return models;
    asked.push(JSON.parse(options.body));
    return answer(asked.length, options);
  };
  const scripts = ["kept/highlight.min.js", "kept/katex.min.js", "markdown.js", "chats.js", "pictures.js", "chat.js"].map(n => fs.readFileSync(path.join(WEB, n), "utf-8").replace(/^if \(typeof module.*/m, "")).join("\n");
  new Function(scripts)();
  const type = words => { nodes.text.value = words; nodes.text.send("keydown", { key: "Enter" }); };
  return { nodes, asked, kept, exported, copied, type, shown: () => nodes.chat.textContent };
}

/* A response that streams these chunks; it waits at a promise, and throws an Error. */
function stream(parts, signal) {
  const encoder = new TextEncoder();
  return {
    ok: true, status: 200,
    body: new ReadableStream({
      async start(controller) {
        const abort = new Promise((_, no) => signal?.addEventListener("abort", () => no(Object.assign(new Error("aborted"), { name: "AbortError" }))));
        abort.catch(() => {});
        try {
          for (const part of parts) {
            if (part instanceof Promise) { await Promise.race([part, abort]); continue; }
            if (part instanceof Error) throw part;
            controller.enqueue(encoder.encode("data: " + JSON.stringify(part) + "\n\n"));
          }
          controller.enqueue(encoder.encode("data: [DONE]\n\n"));
          controller.close();
        } catch (error) { controller.error(error); }
      },
    }),
  };
}
const said = (words, isDrafted = false) => ({ choices: [{ delta: { content: words }, segments: [{ text: words, is_drafted: isDrafted }] }] });
const last = (draft_n = 0) => ({ choices: [], metrics: { tokens_per_second: 12.3, time_to_first_token_ms: 5 }, timings: { predicted_n: 3, draft_n, draft_n_accepted: 1 }, duodec: { method: "auto", seed: 1 } });
const refuse = (status, message) => ({ ok: false, status, json: async () => ({ error: { message } }) });
const soon = () => new Promise(resolve => setTimeout(resolve, 20));

module.exports = { WEB, Node, Text, open, stream, said, last, refuse, soon };
