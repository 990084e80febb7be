/* Run by test_page_scripts.py: each test of the page's scripts is a function that throws. */
"use strict";
const assert = require("assert");
const { renderMarkdown } = require("../../src/duodec/server/web/markdown.js");
const { open, stream, said, last, refuse, soon } = require("./page_dom.cjs");

const markdown = (text, drafted) => {
  const page = open({ answer: () => null });
  const answer = { role: "assistant", content: text, drafted };
  const again = open({ answer: () => null, kept: { "duodec.chat": JSON.stringify([answer]) } });
  return again.nodes.chat.children[0].children.map(n => n.html).join("");
};

const actions = (page, word) => page.nodes.chat.querySelectorAll(".action").filter(n => n.textContent === word);
const chats = page => page.nodes.chats.children.map(item => item.children[0]);
const typing = (page, words) => { const field = page.nodes.chat.querySelector("textarea"); field.value = words; field.send("keydown", { key: "Enter" }); };
const shortened = (n = 3) => ({ ...last(), timings: { ...last().timings, predicted_n: n } });
const cutOff = words => ({ choices: [{ delta: { content: words }, finish_reason: "length" }] });

const tests = {
  async earlier_conversations_are_kept_and_taken_up() {
    const kept = {};
    const page = open({ kept, answer: n => stream([said("answer " + n), last()]) });
    page.type("first chat");
    await soon();
    page.nodes.clear.send("click");
    page.type("second chat");
    await soon();
    const again = open({ kept, answer: () => null });
    assert(again.shown().includes("second chat") && !again.shown().includes("first chat"));
    assert.deepStrictEqual(chats(again).map(n => n.textContent), ["second chat", "first chat"]);
    chats(again)[1].send("click");
    assert(again.shown().includes("answer 1") && !again.shown().includes("answer 2"), again.shown());
    assert.deepStrictEqual(chats(again).map(n => n.textContent), ["first chat", "second chat"]);
    assert.strictEqual(chats(again)[0].getAttribute("aria-current"), "true");
  },
  async chats_of_earlier_versions_are_kept() {
    const old = words => [{ role: "user", content: words }, { role: "assistant", content: "re " + words, drafted: [[0, 2]], facts: "2 tokens" }];
    const page = open({ kept: { "duodec.chat": JSON.stringify(old("one")), "duodec.chats": JSON.stringify([old("two"), "broken", null]) }, answer: () => null });
    assert(page.shown().includes("re one") && page.shown().includes("2 tokens"), page.shown());
    assert.deepStrictEqual(chats(page).map(n => n.textContent), ["one", "two"]);
    for (const broken of ["{", "7", "null", JSON.stringify({ nodes: [{ role: "user", content: "x", parent: 5 }], leaf: 0 })])
      assert(open({ kept: { "duodec.chat": broken, "duodec.chats": broken }, answer: () => null }).shown().includes("Three things to try"));
  },
  async chats_are_searched_and_renamed() {
    const kept = {};
    const page = open({ kept, answer: () => stream([said("of whales"), last()]) });
    page.type("animals");
    await soon();
    page.nodes.clear.send("click");
    page.type("numbers");
    await soon();
    page.nodes.find.value = "WHALES";
    page.nodes.find.send("input");
    assert.strictEqual(chats(page).length, 2, "both answers have the word");
    page.nodes.find.value = "animal";
    page.nodes.find.send("input");
    assert.deepStrictEqual(chats(page).map(n => n.textContent), ["animals"]);
    page.nodes.chats.children[0].children[1].send("click");
    const field = page.nodes.chats.querySelector("input");
    field.value = "  Sea  ";
    field.send("keydown", { key: "Enter" });
    page.nodes.find.value = "nothing has this";
    page.nodes.find.send("input");
    assert.strictEqual(page.nodes.none.hidden, false);
    assert(chats(open({ kept, answer: () => null })).some(n => n.textContent === "Sea"));
  },
  async a_conversation_is_deleted_only_if_confirmed() {
    const kept = {};
    for (const confirms of [false, true]) {
      const page = open({ kept, confirms, answer: () => stream([said("prose"), last()]) });
      if (!confirms) { page.type("hi"); await soon(); }
      page.nodes.chats.children[0].children[2].send("click");
      assert.strictEqual(page.shown().includes("prose"), !confirms);
      assert.strictEqual(open({ kept, answer: () => null }).shown().includes("prose"), !confirms);
    }
  },
  async a_conversation_is_exported_as_the_command_line_loads_it() {
    const page = open({ answer: () => stream([said("words", true), last(4)]) });
    assert.strictEqual(page.nodes.export.hidden, true);
    page.type("hi");
    await soon();
    page.nodes.export.send("click");
    assert.deepStrictEqual(JSON.parse(page.exported[0]), { messages: [{ role: "user", content: "hi" }, { role: "assistant", content: "words" }] });
  },
  async what_was_exported_is_imported() {
    const page = open({ answer: () => stream([said("words"), last(4)]) });
    const choose = async text => { page.nodes.imported.files = [{ name: "chat.json", text: async () => text }]; page.nodes.imported.send("change"); await soon(); };
    page.type("hi");
    await soon();
    page.nodes.export.send("click");
    page.nodes.clear.send("click");
    await choose(page.exported[0]);
    assert(page.shown().includes("hi") && page.shown().includes("words"), page.shown());
    assert.strictEqual(chats(page).length, 2, "the chat before it is kept");
    await choose(JSON.stringify({ messages: [{ role: "system", content: "Be brief." }, { role: "user", content: "of the command line" }] }));
    assert(page.shown().includes("of the command line"), page.shown());
    assert.strictEqual(page.nodes.system.value, "Be brief.");
    for (const broken of ["{", "[]", "7", "{}"]) {
      await choose(broken);
      assert(page.shown().includes("chat.json is no chat"), broken);
      assert(page.shown().includes("of the command line"), "what was shown stays");
    }
  },
  async a_text_file_goes_into_the_message() {
    const page = open({ answer: () => stream([said("ok"), last()]) });
    const choose = async (bytes, size = bytes.length) => { page.nodes.attached.files = [{ name: "a.py", type: "", size, arrayBuffer: async () => bytes }]; page.nodes.attached.send("change"); await soon(); };
    page.nodes.text.value = "Explain this.";
    await choose(new TextEncoder().encode("x = '```'\n"));
    assert.strictEqual(page.nodes.text.value, "a.py:\n````\nx = '```'\n````\n\nExplain this.");
    const before = page.nodes.text.value;
    for (const [bytes, size] of [[new Uint8Array([255, 254])], [new Uint8Array([65, 0])], [new Uint8Array([65]), 300000]]) {
      await choose(bytes, size);
      assert(page.shown().includes("a.py is no text"), page.shown());
      assert.strictEqual(page.nodes.text.value, before);
    }
  },
  async pictures_are_attached_pasted_taken_out_and_sent() {
    const page = open({ sees: true, answer: n => n === 1 ? refuse(400, "too large") : stream([said("ok"), last()]) });
    await soon();
    const file = n => ({ name: n + ".png", type: "image/png", size: 3, arrayBuffer: async () => new Uint8Array([n, n, n]) });
    page.nodes.attached.files = [file(0)];
    page.nodes.attached.send("change");
    await soon();
    page.nodes.text.send("paste", { clipboardData: { files: [file(1), file(2), { name: "a.txt", type: "text/plain" }] } });
    await soon();
    assert.strictEqual(page.nodes.pictures.children.length, 3);
    page.nodes.pictures.children[1].send("click");
    assert.strictEqual(page.nodes.pictures.children.length, 2);
    page.type("what is this?");
    await soon();
    assert.strictEqual(page.nodes.pictures.children.length, 2, "what was not answered can be sent again");
    page.nodes.form.send("submit");
    await soon();
    assert.strictEqual(page.nodes.pictures.hidden, true);
    const urls = ["data:image/png;base64,AAAA", "data:image/png;base64,AgIC"];
    const content = [...urls.map(url => ({ type: "image_url", image_url: { url } })), { type: "text", text: "what is this?" }];
    assert.deepStrictEqual(page.asked[1].messages, [{ role: "user", content }]);
    page.type("and now?");
    await soon();
    assert.deepStrictEqual(page.asked[2].messages[0], { role: "user", content }, "later turns have them, too");
    assert.deepStrictEqual(page.asked[2].messages[2], { role: "user", content: "and now?" });
    const [shown] = page.nodes.chat.children;
    assert.deepStrictEqual(shown.children.filter(n => n.name === "img").map(n => n.attributes.src), urls);
  },
  async a_model_that_reads_text_only_is_sent_no_pictures() {
    const page = open({ answer: () => stream([said("ok"), last()]) });
    await soon();
    page.nodes.attached.files = [{ name: "a.png", type: "image/png", size: 3, arrayBuffer: async () => new Uint8Array([1]) }];
    page.nodes.attached.send("change");
    await soon();
    assert(page.shown().includes("no picture that this model sees"), page.shown());
    page.type("hi");
    await soon();
    assert.deepStrictEqual(page.asked[0].messages, [{ role: "user", content: "hi" }]);
  },
  async a_whole_answer_is_copied_as_it_was_written() {
    const page = open({ answer: () => stream([said("# Title\n\n- **one**"), last()]) });
    page.type("hi");
    await soon();
    const [copy] = actions(page, "copy");
    copy.send("click");
    await soon();
    assert.deepStrictEqual(page.copied, ["# Title\n\n- **one**"]);
    assert.strictEqual(copy.textContent, "copied");
  },
  async a_theme_is_chosen_and_kept() {
    const kept = {};
    const page = open({ kept, answer: () => null });
    assert.strictEqual(document.documentElement.style.colorScheme, "light dark");
    page.nodes.theme.value = "dark";
    page.nodes.theme.send("change");
    assert.strictEqual(document.documentElement.style.colorScheme, "dark");
    open({ kept, answer: () => null });
    assert.strictEqual(document.documentElement.style.colorScheme, "dark");
  },
  async how_full_the_context_is_stands_below_an_answer() {
    const page = open({ answer: () => stream([said("ok"), { ...last(), usage: { total_tokens: 121 } }]) });
    page.type("hi");
    await soon();
    assert(page.shown().includes("the context is 13% full (121 of 1000 tokens)"), page.shown());
  },
  async an_edited_message_stands_beside_the_old_one() {
    const kept = {};
    const page = open({ kept, answer: n => stream([said("answer " + n), last()]) });
    page.type("one");
    await soon();
    page.type("two");
    await soon();
    actions(page, "edit")[1].send("click");
    assert.strictEqual(page.nodes.chat.querySelector("textarea").value, "two");
    page.nodes.chat.querySelectorAll(".action").concat(page.nodes.chat.querySelectorAll(".quiet")).find(n => n.textContent === "Cancel").send("click");
    assert(page.shown().includes("two") && page.shown().includes("answer 2"), page.shown());
    assert.strictEqual(page.asked.length, 2, "nothing was asked");
    actions(page, "edit")[1].send("click");
    typing(page, "three");
    await soon();
    assert.deepStrictEqual(page.asked[2].messages.map(m => m.content), ["one", "answer 1", "three"]);
    assert(page.shown().includes("answer 3") && !page.shown().includes("answer 2"), page.shown());
    const again = open({ kept, answer: () => null });
    assert(again.shown().includes("2 of 2"), again.shown());
    actions(again, "‹")[0].send("click");
    assert(again.shown().includes("answer 2") && !again.shown().includes("answer 3"), again.shown());
    assert(again.shown().includes("1 of 2"));
  },
  async an_edit_while_an_answer_streams_waits() {
    const page = open({ answer: (n, o) => stream(n === 1 ? [said("done"), last()] : [said("half"), new Promise(() => {})], o.signal) });
    page.type("one");
    await soon();
    page.type("two");
    await soon();
    actions(page, "edit")[0].send("click");
    assert.strictEqual(page.nodes.chat.querySelector("textarea"), null);
    page.nodes.stop.send("click");
  },
  async an_answer_that_the_limit_cut_says_so_and_goes_on_with_its_seed() {
    const page = open({ answer: n => stream(n === 1 ? [said("one "), cutOff("two"), shortened(64)] : [said("one two three"), last()]) });
    page.nodes.max_tokens.value = "64";
    page.type("count");
    await soon();
    assert(page.shown().includes("cut off by the limit of 64 tokens"), page.shown());
    actions(page, "continue")[0].send("click");
    await soon();
    assert.deepStrictEqual([page.asked[1].seed, page.asked[1].max_tokens], [1, 128]);
    assert.deepStrictEqual(page.asked[1].messages, page.asked[0].messages);
    assert(page.shown().includes("one two three"), page.shown());
    assert.strictEqual(actions(page, "continue").length, 0);
  },
  async a_dead_server_is_named_and_asked_again() {
    let isGone = false;
    const page = open({ answer: () => stream([said("fine"), last()]), isGone: () => isGone });
    await soon();
    assert.strictEqual(page.nodes.banner.hidden, true);
    isGone = true;
    page.type("hello");
    await soon();
    assert(page.shown().includes("the server at 127.0.0.1:8000 does not answer"), page.shown());
    assert.strictEqual(page.nodes.banner.hidden, false);
    assert(page.nodes.trouble.textContent.includes("127.0.0.1:8000"));
    assert.strictEqual(page.nodes.text.value, "hello", "the words are back");
    isGone = false;
    page.nodes.retry.send("click");
    await soon();
    assert(page.shown().includes("fine"), page.shown());
    await new Promise(resolve => setTimeout(resolve, 1100));
    assert.strictEqual(page.nodes.banner.hidden, true);
  },
  async tokens_are_told_by_source_and_what_drafting_brought_in_words() {
    const counts = { predicted_n: 60, draft_n: 80, draft_n_accepted: 40, draft_n_accepted_from_model: 25 };
    const end = (plain_ms, tokens_per_second, more = {}) => ({ ...last(), metrics: { tokens_per_second, time_to_first_token_ms: 5 }, timings: { ...counts, plain_ms, ...more } });
    const shown = async (chunk, busy = 0) => { const page = open({ busy, answer: () => stream([said("ok"), chunk]) }); page.type("hi"); await soon(); return page.shown(); };
    const fast = await shown(end(50, 42));
    assert(fast.includes("2.1× plain decoding"), fast);
    assert(fast.includes("40 of 60 tokens came free") && !fast.includes("earlier text"), fast);
    assert((await shown(end(50, 20.4))).includes("drafts bring little here"));
    const slow = await shown(end(50, 14));
    assert(slow.includes("0.70× plain decoding: drafts do not pay here"), slow);
    const busy = await shown(end(50, 35), 1.3);  // as tests/cli/test_comparison.py has it
    assert(busy.includes("about 1.5 to 2 times plain decoding; other programs kept 1.3 cores busy") && !busy.includes("×"), busy);
    const unmeasured = await shown(end(null, 42));
    assert(!/plain decoding|little/.test(unmeasured), unmeasured);
    const plain = await shown(end(50, 20, { draft_n: 0, draft_n_accepted: 0, draft_n_accepted_from_model: 0 }));
    assert(plain.includes("no drafts") && !plain.includes("× plain"), plain);
  },
  async drafted_words_say_what_proposed_them() {
    const from = (text, source) => ({ choices: [{ delta: { content: text }, segments: [{ text, is_drafted: Boolean(source), source }] }] });
    const page = open({ answer: () => stream([from("a", null), from("b", "draft model"), from("c", "draft model"), from("d", "earlier text"), last(4)]) });
    page.type("hi");
    await soon();
    assert(page.nodes.chat.html.includes('a<span class="drafted">bc</span><span class="drafted earlier">d</span>'), page.nodes.chat.html);
  },
  async an_empty_chat_shows_three_things_to_try() {
    const page = open({ answer: () => stream([said("ok"), last()]) });
    const tries = page.nodes.chat.querySelectorAll(".try");
    assert.strictEqual(tries.length, 3);
    tries[1].send("click");
    await soon();
    assert.strictEqual(page.asked[0].messages[0].content, tries[1].textContent);
    assert(!page.shown().includes("Three things"), page.shown());
  },
  formulas_become_mathml_and_prices_stay() {
    for (const text of ["so $x^2$ is", "so \\(x^2\\) is", "$$\nx^2\n$$", "\\[\nx^2\n- 1\n\\]", "- a $$x^2$$ b"])
      assert(markdown(text).includes("<msup>"), text + " in " + markdown(text));
    for (const text of ["it costs $5 and $6", "$ a $", "open \\[ x", "$$ open\n\n# Title", "\\(open", "`$x$`", "```\n$x$\n```", "\\$x\\$"])
      assert(!markdown(text).includes("<math"), text + " in " + markdown(text));
    assert(markdown("$$ open\n\n# Title").includes("<h2>Title</h2>"));
    const evil = markdown("$\\href{javascript:alert(1)}{x}$ $\\includegraphics{https://e.org/x.png}$ $\\def\\a{\\a\\a}\\a$");
    assert(!/href|<img/.test(evil.replace(/\\href/g, "")), evil);
  },
  code_is_coloured_and_keeps_what_was_drafted() {
    const got = markdown('```js\nlet a = "<b>";\n```', [[6, 12]]);
    assert(got.includes('<span class="hljs-keyword"><span class="drafted">let</span></span>'), got);
    assert(got.includes('<span class="hljs-string">"&lt;b>"</span>'), got);
    assert(!markdown("```nothing\nlet a\n```").includes("hljs"));
  },
  async the_last_answer_is_given_again() {
    const page = open({ answer: n => stream([said("answer " + n), last()]) });
    page.type("one");
    await soon();
    assert.strictEqual(actions(page, "regenerate").length, 1);
    actions(page, "regenerate")[0].send("click");
    await soon();
    assert.deepStrictEqual(page.asked[1].messages, page.asked[0].messages);
    assert(page.shown().includes("answer 2") && !page.shown().includes("answer 1"), page.shown());
    assert.strictEqual(actions(page, "regenerate").length, 1);
  },
  async several_models_can_be_picked() {
    const models = { status: 200, json: async () => ({ data: [{ id: "a" }, { id: "b" }] }) };
    const page = open({ models, answer: () => stream([said("ok"), last()]) });
    await soon();
    assert.strictEqual(page.nodes.pick.hidden, false);
    page.nodes.pick.value = "b";
    page.type("hi");
    await soon();
    assert.strictEqual(page.asked[0].model, "b");
    const one = open({ answer: () => null });
    await soon();
    assert.strictEqual(one.nodes.pick.hidden, true);
  },
  async without_drafts_the_page_says_why() {
    const page = open({ answer: () => stream([said("ok"), last(0)]) });
    await soon();
    page.type("hi");
    await soon();
    assert(page.shown().includes("no drafts: no draft model is loaded"), page.shown());
  },
  markdown_becomes_nodes() {
    const got = markdown("# Title\n\nA **bold** and *slanted* `x < y`.\n\n- one\n- two\n  1. deep\n\n> quoted\n\n| a | b |\n|---|---|\n| 1 | 2 |\n\n---\n");
    for (const part of ["<h2>Title</h2>", "<strong>bold</strong>", "<em>slanted</em>", "<code>x &lt; y</code>", "<li><p>one</p></li>", "<ol><li><p>deep</p></li></ol>", "<blockquote><p>quoted</p></blockquote>", "<th>a</th>", "<td>2</td>", "<hr>"])
      assert(got.includes(part), part + " in " + got);
  },
  code_keeps_its_lines_and_may_be_open() {
    const got = markdown("```python\nif a:\n    b *= c\n");
    assert(got.includes('<span class="language">python</span>'), got);
    assert(got.includes('<span class="hljs-keyword">if</span> a:\n    b *= c'), got);
    assert(!got.includes("<em>"), got);
  },
  words_with_marks_in_them_stay() {
    assert.strictEqual(markdown("snake_case_name and 2 * 3 * 4 and \\*no\\* and **open"), "<p>snake_case_name and 2 * 3 * 4 and *no* and **open</p>");
  },
  html_is_text_and_links_are_safe() {
    const got = markdown("<img src=x onerror=alert(1)> [a](javascript:alert(1)) [b](https://e.org) ![p](https://e.org/p.png) [c](data:text/html,x)");
    assert(got.includes("&lt;img src=x"), got);
    assert(!got.includes("<img"), got);
    assert(!/href="(?!https?:)/.test(got), got);
    assert(got.includes('<a href="https://e.org"'), got);
    assert(got.includes("noopener"), got);
  },
  drafted_words_are_marked_inside_of_markdown() {
    assert.strictEqual(markdown("a **bold** end", [[4, 6], [8, 12]]), '<p>a <strong><span class="drafted">bo</span>ld</strong><span class="drafted"> e</span>nd</p>');
  },
  every_character_is_rendered_within_moments() {
    for (const evil of ["*", "_", "`", "[", "**a ", "> ", "- ", "|"]) {
      const begin = Date.now();
      markdown(evil.repeat(4000));
      assert(Date.now() - begin < 4000, evil);
    }
  },
  what_a_model_writes_for_ever_is_rendered_within_moments() {
    open({ answer: () => null });
    const n = 8000, blanks = " ".repeat(3 * n);
    const evils = [
      "*a ", "_a ", "**a ", "~~a ", "*_a ", "*a* _b ", "*a\\*", "https://a_ ", "|a", "- a\n\n", "`a", "[a](", "***a ",
      "$a$ ", "$a ", "$$a", "$$\n", "\\[\n", "\\(a\\)", "\\(", "$\\frac{a}{b}$", "```js\na = `${b}` /* \"c\n",
    ].map(words => words.repeat(n)).concat([
      "[a](" + blanks, "[a](b" + blanks, "https://a" + ".".repeat(3 * n) + "x", "# a" + blanks + "b", "# a" + "#".repeat(3 * n) + "b",
      "- a\n" + "\n".repeat(n) + "  b", "|a|b|\n|-|-|\n" + "|a|b|\n".repeat(n), "a|b\n-" + blanks + "a", "```" + blanks + "`",
    ]);
    for (const evil of evils)
      for (const drafted of [[], Array.from({ length: evil.length / 2 | 0 }, (_, i) => [2 * i, 2 * i + 1])]) {
        const begin = Date.now();
        renderMarkdown(evil, drafted);
        assert(Date.now() - begin < 1000, evil.slice(0, 20));
      }
  },
  headings_and_links_keep_their_marks_and_blanks() {
    assert.strictEqual(markdown("# a # \n## b##\n# c ###"), "<h2>a</h2><h3>b##</h3><h2>c</h2>");
    assert(markdown('[a](  https://e.org  "t" )').startsWith('<p><a href="https://e.org"'));
    assert.strictEqual(markdown("- a\n\n\n  b\n\n\nc"), "<ul><li><p>a</p><p>b</p></li></ul><p>c</p>");
  },
  async a_reload_keeps_the_conversation() {
    const kept = {};
    const page = open({ kept, answer: () => stream([said("Hello "), said("you", true), last(4)]) });
    page.type("hi");
    await soon();
    assert(page.shown().includes("Hello you"));
    assert(page.shown().includes("1 of 4 drafts accepted"));
    const again = open({ kept, answer: () => stream([said("fine"), last()]) });
    assert(again.shown().includes("hi") && again.shown().includes("Hello you") && again.shown().includes("1 of 4 drafts accepted"));
    assert(again.nodes.chat.html.includes('<span class="drafted">you</span>'));
    again.type("and now?");
    await soon();
    assert.deepStrictEqual(again.asked[0].messages, [{ role: "user", content: "hi" }, { role: "assistant", content: "Hello you" }, { role: "user", content: "and now?" }]);
    again.nodes.clear.send("click");
    assert(open({ kept, answer: () => null }).shown().includes("Three things to try"));
  },
  async a_reload_in_the_middle_keeps_what_was_said_as_stopped() {
    const kept = {};
    const page = open({ kept, answer: (n, o) => stream([said("Half an"), new Promise(() => {})], o.signal) });
    page.type("hi");
    await soon();
    const again = open({ kept, answer: () => null });
    assert(again.shown().includes("Half an") && again.shown().includes("stopped"), again.shown());
    page.nodes.stop.send("click");
  },
  async enter_while_an_answer_streams_queues_the_message() {
    let release;
    const held = new Promise(resolve => { release = resolve; });
    const page = open({ answer: (n, o) => stream(n === 1 ? [said("first"), held, said(" done"), last()] : [said("second"), last()], o.signal) });
    page.type("one");
    await soon();
    page.type("two");
    await soon();
    assert.strictEqual(page.asked.length, 1);
    assert.strictEqual(page.nodes.text.value, "two");
    assert(page.nodes.live.textContent.includes("goes out when this answer ends"));
    release();
    await soon(); await soon();
    assert.strictEqual(page.asked.length, 2);
    assert.strictEqual(page.nodes.text.value, "");
    assert(page.shown().includes("first done") && page.shown().includes("second"), page.shown());
  },
  async escape_takes_a_queued_message_back() {
    let release;
    const held = new Promise(resolve => { release = resolve; });
    const page = open({ answer: (n, o) => stream([said("first"), held, last()], o.signal) });
    page.type("one");
    await soon();
    page.type("two");
    page.nodes.text.send("keydown", { key: "Escape" });
    release();
    await soon();
    assert.strictEqual(page.asked.length, 1);
    assert.strictEqual(page.nodes.text.value, "two");
  },
  async stop_keeps_what_was_said_and_marks_it() {
    const page = open({ answer: (n, o) => stream([said("some words"), new Promise(() => {})], o.signal) });
    page.type("one");
    await soon();
    assert.strictEqual(page.nodes.stop.hidden, false);
    page.nodes.stop.send("click");
    await soon();
    assert(page.shown().includes("some words") && page.shown().includes("stopped"));
    assert.strictEqual(page.nodes.stop.hidden, true);
    assert.strictEqual(page.nodes.send.textContent, "Send");
  },
  async an_error_gives_the_words_back_and_clears_the_statistics() {
    const page = open({ answer: n => n === 1 ? refuse(400, "the context holds 4000") : stream([said("ok"), last()]) });
    page.nodes.live.textContent = "12 tokens/s";
    page.type("too long");
    await soon();
    assert.strictEqual(page.nodes.text.value, "too long");
    assert.strictEqual(page.nodes.live.textContent, "");
    assert.strictEqual(page.shown(), "the context holds 4000");
    page.type("short");
    await soon();
    assert(!page.shown().includes("holds 4000"));
    assert.deepStrictEqual(page.asked[1].messages, [{ role: "user", content: "short" }]);
  },
  async a_failure_in_the_middle_keeps_what_was_said() {
    const page = open({ answer: () => stream([said("half"), { choices: [], error: { message: "the target died" } }]) });
    page.type("one");
    await soon();
    assert(page.shown().includes("half") && page.shown().includes("broken off: the target died"));
    assert.strictEqual(page.nodes.live.textContent, "");
  },
  async a_missing_key_is_asked_for_in_plain_words() {
    const page = open({ answer: () => refuse(401, "send Authorization: Bearer KEY"), models: { status: 401 } });
    await soon();
    assert.strictEqual(page.nodes.ask.hidden, false);
    assert(page.nodes.why.textContent.includes("asks for an API key"));
    assert.strictEqual(global.document.active, "key");
    page.type("hello");
    await soon();
    assert(!page.shown().includes("Bearer"), page.shown());
    assert.strictEqual(page.nodes.text.value, "hello");
    page.nodes.key.value = "wrong";
    page.type("hello");
    await soon();
    assert(page.nodes.why.textContent.includes("does not know this API key"));
  },
  async a_new_chat_while_an_answer_streams_begins_anew() {
    const page = open({ answer: (n, o) => stream(n === 1 ? [said("old"), new Promise(() => {})] : [said("new"), last()], o.signal) });
    page.type("one");
    await soon();
    page.nodes.clear.send("click");
    page.type("two");
    await soon();
    assert(page.shown().includes("new") && !page.shown().includes("old"), page.shown());
    assert.strictEqual(page.nodes.send.textContent, "Send");
  },
};

(async () => {
  if (process.argv[2] === "--list") { console.log(Object.keys(tests).join("\n")); return; }
  await tests[process.argv[2]]();
  process.exit(0);
})().catch(error => { console.error(error.stack); process.exit(1); });
