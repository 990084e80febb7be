"use strict";
/* Markdown of models as DOM nodes: paragraphs, headings, lists, quotes, tables, code, maths, emphasis, links.

   `renderMarkdown(text, drafted)` gives a fragment. Text only ever becomes text nodes, so HTML is shown
   and never run; links lead to http, https and mailto alone; pictures become links, nothing is fetched.
   `drafted` are ranges [from, to, source?] of the text, in order: what lies in them is wrapped in .drafted.
   Code is coloured by highlight.js and formulas are MathML of KaTeX, where these are there: both give nodes,
   and only so much of a text is given to them.
   A block that is not closed yet, as while an answer streams, reaches to the end.
   It takes time that grows with the text, whatever a model writes: nothing is looked for again that is
   known to be missing, and no expression can match the same characters in two ways. */
const renderMarkdown = (() => {
  const FENCE = /^ {0,3}(`{3,}|~{3,})([^`]*)$/, HEADING = /^ {0,3}(#{1,6})(?:\s+|$)/, RULE = /^ {0,3}([-*_])(?:\s*\1){2,}\s*$/;
  const QUOTE = /^ {0,3}> ?/, ITEM = /^( *)([-*+]|\d{1,9}[.)])(?: +|$)/, CELLS = /^\|?\s*:?-+:?(\s*\|\s*:?-+:?)*\s*\|?$/;
  const MATH = /^ {0,3}(\$\$|\\\[)/, CLOSING = { "$$": "$$", "\\[": "\\]", "\\(": "\\)", "$": "$" };
  const MOST_CODE = 20000, MOST_FORMULA = 2000, MOST_MATHS = 20000, A_FORMULA = 50;  // characters
  const known = new Map();  // formulas that were rendered, while an answer streams again and again
  const DEEPEST = 16;  // blocks and spans inside of one another
  const SAFE = /^(https?:\/\/|mailto:)/i, ESCAPED = /[!-/:-@[-`{-~]/;

  function renderMarkdown(text, drafted = []) {
    const root = document.createDocumentFragment();
    const lines = [];
    for (let from = 0; from <= text.length;) {
      let to = text.indexOf("\n", from);
      if (to < 0) to = text.length;
      lines.push({ from, to });
      from = to + 1;
    }
    blocks(root, lines, { text, drafted, maths: MOST_MATHS, code: MOST_CODE, open: new Set() });
    return root;
  }

  const wordsOf = (line, source) => source.text.slice(line.from, line.to);
  const put = (parent, name, kind) => {
    const node = document.createElement(name);
    if (kind) node.className = kind;
    parent.append(node);
    return node;
  };

  /* Lines are ranges of the source, so that what is left of a line is still known by its place. */
  function blocks(parent, lines, source, depth = 0) {
    let i = 0;
    if (depth > DEEPEST) { inline(put(parent, "p"), lines, source); return; }
    while (i < lines.length) {
      const words = wordsOf(lines[i], source);
      const math = MATH.exec(words);
      if (math && !source.open.has(math[1])) {
        const after = display(parent, lines, i, source);
        if (after > i) { i = after; continue; }
      }
      if (!words.trim()) i++;
      else if (FENCE.test(words)) i = fence(parent, lines, i, source);
      else if (HEADING.test(words)) {
        const level = HEADING.exec(words);
        const line = { from: lines[i].from + level[0].length, to: lines[i].to };
        const title = wordsOf(line, source).trimEnd();
        let end = title.length;
        while (title[end - 1] === "#") end--;
        if (end === 0 || !/\s/.test(title[end - 1])) end = title.length;  // the marks are its own
        line.to = line.from + title.slice(0, end).trimEnd().length;
        inline(put(parent, "h" + Math.min(6, level[1].length + 1)), [line], source);
        i++;
      } else if (RULE.test(words)) { put(parent, "hr"); i++; }
      else if (QUOTE.test(words)) {
        const inner = [];
        for (; i < lines.length && QUOTE.test(wordsOf(lines[i], source)); i++)
          inner.push({ from: lines[i].from + QUOTE.exec(wordsOf(lines[i], source))[0].length, to: lines[i].to });
        blocks(put(parent, "blockquote"), inner, source, depth + 1);
      } else if (ITEM.test(words)) i = list(parent, lines, i, source, depth);
      else if (words.includes("|") && i + 1 < lines.length && wordsOf(lines[i + 1], source).includes("-") && CELLS.test(wordsOf(lines[i + 1], source).trim()))
        i = table(parent, lines, i, source);
      else {
        const own = [];
        do own.push(lines[i++]); while (i < lines.length && !beginsBlock(wordsOf(lines[i], source)));
        inline(put(parent, "p"), own, source);
      }
    }
  }
  const beginsBlock = words => !words.trim() || [FENCE, MATH, HEADING, RULE, QUOTE, ITEM].some(kind => kind.test(words));

  function fence(parent, lines, i, source) {
    const [, mark, language] = FENCE.exec(wordsOf(lines[i], source));
    const indent = /^ */.exec(wordsOf(lines[i], source))[0].length;
    const own = [];
    for (i++; i < lines.length; i++) {
      const words = wordsOf(lines[i], source), end = words.trim();
      if (end.length >= mark.length && end === mark[0].repeat(end.length)) { i++; break; }
      own.push({ from: lines[i].from + Math.min(indent, /^ */.exec(words)[0].length), to: lines[i].to });
    }
    const box = put(parent, "div", "code");
    put(box, "span", "language").textContent = language.trim().split(/\s/)[0];
    const frame = put(box, "pre"), code = put(frame, "code");
    frame.setAttribute("tabindex", "0");  // keys scroll it
    const { chars, at } = joined(own, source);
    let begin = 0;
    for (const [from, to, kind] of coloured(chars, language.trim().split(/\s/)[0], source)) {
      plain(code, chars, at, begin, from, source);
      plain(put(code, "span", kind), chars, at, from, to, source);
      begin = to;
    }
    plain(code, chars, at, begin, chars.length, source);
    return i;
  }

  /* Ranges of code and the class of each, in order; none of a language that is not known. */
  class Scopes {
    constructor() { this.at = 0; this.begun = []; this.found = []; }
    addText(words) { this.at += words.length; }
    startScope(kind) { this.begun.push([this.at, kind]); }
    endScope() { const [from, kind] = this.begun.pop(); this.found.push([from, this.at, kind]); }
    openNode(kind) { this.startScope(kind); }
    closeNode() { this.endScope(); }
    __addSublanguage(inner) {
      this.found.push(...inner.found.map(([from, to, kind]) => [from + this.at, to + this.at, kind]));
      this.at += inner.at;
    }
    finalize() { while (this.begun.length) this.endScope(); }
    toHTML() { return ""; }
  }
  function coloured(chars, language, source) {
    if (typeof hljs === "undefined" || !hljs.getLanguage(language) || chars.length > source.code) return [];
    source.code -= chars.length;
    hljs.configure({ __emitter: Scopes });
    const kinds = Array(chars.length), { found } = hljs.highlight(chars, { language, ignoreIllegals: true })._emitter;
    for (const [from, to, kind] of found.reverse()) kinds.fill(kind, from, to);  // inner ones end first
    const ranges = [];
    kinds.forEach((kind, at) => {
      const last = ranges[ranges.length - 1];
      if (last && last[1] === at && last[3] === kind) last[1]++;
      else if (!kind.includes(":")) ranges.push([at, at + 1, "hljs-" + kind.split(".")[0], kind]);
    });
    return ranges;
  }

  /* A formula on lines of its own; the line itself where nothing closes it. */
  function display(parent, lines, i, source) {
    const mark = MATH.exec(wordsOf(lines[i], source))[1], closing = CLOSING[mark];
    const begin = lines[i].from + wordsOf(lines[i], source).indexOf(mark) + mark.length;
    for (let last = i; last < lines.length; last++) {
      const from = last === i ? begin : lines[last].from, end = source.text.slice(from, lines[last].to).indexOf(closing);
      if (end < 0) continue;
      formula(parent, "div", source.text.slice(begin, from + end), source);
      const rest = { from: from + end + closing.length, to: lines[last].to };
      if (wordsOf(rest, source).trim()) inline(put(parent, "p"), [rest], source);
      return last + 1;
    }
    source.open.add(mark);
    return i;
  }
  function formula(parent, name, tex, source) {
    const price = tex.length + A_FORMULA, key = name + tex;
    const isRendered = typeof katex !== "undefined" && tex.length <= MOST_FORMULA && price <= source.maths;
    if (isRendered && known.has(key)) { source.maths -= price; parent.append(known.get(key).cloneNode(true)); return; }
    const node = put(parent, name, "math");
    node.textContent = tex;
    if (!isRendered) return;
    source.maths -= price;
    try {
      katex.render(tex, node, { output: "mathml", displayMode: name === "div", throwOnError: false, maxExpand: 200, strict: "ignore" });
      if (known.size > 500) known.clear();
      known.set(key, node.cloneNode(true));
    } catch { node.textContent = tex; }
  }

  function list(parent, lines, i, source, depth) {
    const first = ITEM.exec(wordsOf(lines[i], source));
    const isOrdered = /\d/.test(first[2]), indent = first[1].length;
    const node = put(parent, isOrdered ? "ol" : "ul");
    if (isOrdered && parseInt(first[2]) !== 1) node.setAttribute("start", String(parseInt(first[2])));
    while (i < lines.length) {
      const item = ITEM.exec(wordsOf(lines[i], source));
      if (!item || /\d/.test(item[2]) !== isOrdered || item[1].length < indent || item[1].length >= indent + 2 + first[2].length) break;
      const width = item[0].length, inner = [{ from: lines[i].from + width, to: lines[i].to }];
      for (i++; i < lines.length; i++) {
        const words = wordsOf(lines[i], source), deep = /^ */.exec(words)[0].length;
        if (!words.trim()) {  // a blank line belongs to the item where what follows does
          let next = i;
          while (next < lines.length && !wordsOf(lines[next], source).trim()) next++;
          if (next === lines.length || /^ */.exec(wordsOf(lines[next], source))[0].length < indent + 2) break;
          for (; i < next; i++) inner.push({ from: lines[i].to, to: lines[i].to });
          i--;
        } else if (deep >= indent + 2) inner.push({ from: lines[i].from + Math.min(width, deep), to: lines[i].to });
        else if (!beginsBlock(words) && wordsOf(lines[i - 1], source).trim()) inner.push(lines[i]);
        else break;
      }
      const own = put(node, "li");
      blocks(own, inner, source, depth + 1);
      // a blank line between items of one list ends nothing
      let next = i;
      while (next < lines.length && !wordsOf(lines[next], source).trim()) next++;
      if (next < lines.length && ITEM.test(wordsOf(lines[next], source))) i = next;
    }
    return i;
  }

  function table(parent, lines, i, source) {
    const frame = put(parent, "div", "table"), node = put(frame, "table");
    frame.setAttribute("tabindex", "0");
    let row = put(put(node, "thead"), "tr");
    for (const cell of cells(lines[i], source)) inline(put(row, "th"), [cell], source);
    const body = put(node, "tbody");
    for (i += 2; i < lines.length && wordsOf(lines[i], source).includes("|"); i++) {
      row = put(body, "tr");
      for (const cell of cells(lines[i], source)) inline(put(row, "td"), [cell], source);
    }
    return i;
  }
  function cells(line, source) {
    const found = [];
    let from = line.from, isCode = false;
    for (let at = line.from; at <= line.to; at++) {
      const char = at < line.to ? source.text[at] : "|";
      if (char === "`") isCode = !isCode;
      if (at < line.to && (char !== "|" || isCode || source.text[at - 1] === "\\")) continue;
      const words = source.text.slice(from, at);
      const blank = words.length - words.trimStart().length;
      if (words.trim() || (from !== line.from && at !== line.to)) found.push({ from: Math.min(at, from + blank), to: Math.max(from + blank, at - (words.length - words.trimEnd().length)) });
      from = at + 1;
    }
    return found;
  }

  /* The characters of some lines and the place of each in the source. */
  function joined(lines, source) {
    let chars = "";
    const at = [];
    lines.forEach((line, i) => {
      if (i) { chars += "\n"; at.push(line.from); }
      for (let j = line.from; j < line.to; j++) { chars += source.text[j]; at.push(j); }
    });
    return { chars, at };
  }

  function inline(parent, lines, source) {
    const { chars, at } = joined(lines, source);
    spans(parent, chars, at, 0, chars.length, source, 0);
  }

  /* What is emphasised, linked or code between two characters. */
  function spans(parent, chars, at, from, to, source, depth) {
    let begin = from;
    const missing = new Set();  // marks that nothing closes from here on
    chars = chars.slice(0, to);  // what is looked for is not looked for beyond
    const flush = end => { plain(parent, chars, at, begin, end, source); };
    for (let i = from; i < to;) {
      const found = depth < DEEPEST ? span(chars, i, from, to, missing) : null;
      if (!found) { i++; continue; }
      flush(i);
      if (found.math) formula(parent, found.math, chars.slice(found.from, found.to), source);
      else if (found.name) {
        const node = put(parent, found.name);
        if (found.href) { node.setAttribute("href", found.href); node.setAttribute("rel", "noopener noreferrer"); node.setAttribute("target", "_blank"); }
        if (found.isPlain) plain(node, chars, at, found.from, found.to, source);
        else spans(node, chars, at, found.from, found.to, source, depth + 1);
      } else plain(parent, chars, at, found.from, found.to, source);
      i = begin = found.end;
    }
    flush(to);
  }

  function span(chars, i, from, to, missing) {
    const char = chars[i];
    if (char === "$" || (char === "\\" && "([".includes(chars[i + 1]))) return maths(chars, i, to, missing);
    if (char === "\\" && i + 1 < to && ESCAPED.test(chars[i + 1])) return { from: i + 1, to: i + 2, end: i + 2 };
    if (char === "`") {
      let width = 1;
      while (chars[i + width] === "`") width++;
      const mark = "`".repeat(width);
      for (let end = i + width; !missing.has(mark) && (end = chars.indexOf(mark, end)) >= 0;) {
        let more = width;
        while (chars[end + more] === "`") more++;
        if (more === width) return { name: "code", isPlain: true, from: i + width, to: end, end: end + width };
        end += more;
      }
      missing.add(mark);
      return { from: i, to: i + width, end: i + width };  // not closed: as it is
    }
    if (char === "*" || char === "_" || char === "~") {
      const isDouble = chars[i + 1] === char;
      if (char === "~" && !isDouble) return null;
      const mark = isDouble ? char + char : char, begin = i + mark.length;
      if (begin >= to || /\s/.test(chars[begin])) return null;
      if (char === "_" && i > from && /\w/.test(chars[i - 1])) return null;
      for (let end = begin + 1; !missing.has(mark) && (end = chars.indexOf(mark, end)) >= 0; end++) {
        if (/\s/.test(chars[end - 1]) || chars[end - 1] === "\\") continue;
        const isPair = end + 1 < to && chars[end + 1] === char;
        if (!isDouble && (isPair || chars[end - 1] === char)) { if (isPair) end++; continue; }
        if (char === "_" && /\w/.test(chars[end + mark.length] || " ")) continue;
        while (isDouble && end + 2 < to && chars[end + 2] === char) end++;  // ***both***
        return { name: isDouble ? (char === "~" ? "del" : "strong") : "em", from: begin, to: end, end: end + mark.length };
      }
      missing.add(mark);
      return isDouble ? { from: i, to: begin, end: begin } : null;
    }
    if (char === "[" || (char === "!" && chars[i + 1] === "[")) {
      const link = /^!?\[((?:[^\[\]\\]|\\.)*)\]\(\s{0,4}<?([^\s()<>]*(?:\([^\s()]*\)[^\s()<>]*)*)>?(?:\s{1,4}"[^"]*")?\s{0,4}\)/.exec(chars.slice(i, to));
      if (!link || !SAFE.test(link[2])) return null;
      const begin = i + (char === "!" ? 2 : 1);
      return { name: "a", href: link[2], from: begin, to: begin + link[1].length, end: i + link[0].length };
    }
    if (char === "h" && (i === from || !/\w/.test(chars[i - 1]))) {
      const link = /^https?:\/\/[^\s<>"'`\]|]+/i.exec(chars.slice(i, to));
      if (!link) return null;
      let size = link[0].length;
      while (".,;:!?*_".includes(link[0][size - 1])) size--;
      let href = link[0].slice(0, size);
      if (href.endsWith(")") && !href.includes("(")) href = href.slice(0, -1);
      return { name: "a", href, isPlain: true, from: i, to: i + href.length, end: i + href.length };
    }
    return null;
  }

  /* $x$ where the marks hug it and no digit follows, so that prices stay; \\(x\\), $$x$$, \\[x\\]. */
  function maths(chars, i, to, missing) {
    const isHugged = chars[i] === "$" && chars[i + 1] !== "$", mark = isHugged ? "$" : chars.slice(i, i + 2), closing = CLOSING[mark];
    const begin = i + mark.length, as = { from: mark[0] === "$" ? i : i + 1, to: begin, end: begin };  // no formula
    if (missing.has(closing) || begin >= to || (isHugged && /\s/.test(chars[begin]))) return as;
    const end = chars.indexOf(closing, begin);
    if (end < 0) missing.add(closing);
    if (end <= begin || (isHugged && (/\s/.test(chars[end - 1]) || /\d/.test(chars[end + 1] || "")))) return as;
    return { math: mark === "$" || mark === "\\(" ? "span" : "div", from: begin, to: end, end: end + closing.length };
  }

  /* Text as it is, what was drafted in spans of its own. */
  function plain(parent, chars, at, from, to, source) {
    let range = 0;
    for (let last = source.drafted.length; range < last;) {  // the first that ends after `from`
      const middle = (range + last) >> 1;
      if (source.drafted[middle][1] <= at[from]) range = middle + 1; else last = middle;
    }
    const sourceOf = place => {
      while (range < source.drafted.length && source.drafted[range][1] <= place) range++;
      const found = source.drafted[range];
      return found && found[0] <= place ? found[2] || "draft model" : "";
    };
    for (let i = from; i < to;) {
      const by = sourceOf(at[i]), begin = i;
      while (i < to && sourceOf(at[i]) === by) i++;
      const words = chars.slice(begin, i);
      if (by) put(parent, "span", by === "earlier text" ? "drafted earlier" : "drafted").textContent = words;
      else parent.append(document.createTextNode(words));
    }
  }
  return renderMarkdown;
})();
if (typeof module !== "undefined") module.exports = { renderMarkdown };
