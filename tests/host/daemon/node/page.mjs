// Checks the functions of the web page that need no browser. Argument: the folder of its scripts.

import assert from "node:assert/strict";
import {readFileSync} from "node:fs";
import {join} from "node:path";
import {runInThisContext} from "node:vm";

const run = (file) => runInThisContext(readFileSync(join(process.argv[2], file), "utf8"), {filename: file});
run("markdown.js");
const {messages, written, drop} = runInThisContext(
  `(() => {${readFileSync(join(process.argv[2], "store.js"), "utf8")}; return {messages, written, drop}})()`,
);

// Markdown: objects of another context compare by their JSON.
const plain = (value) => JSON.parse(JSON.stringify(value));
const is = (text, blocks) => assert.deepEqual(plain(parse(text)), blocks, text);
const line = (text, ...parts) => is(text, [{kind: "paragraph", parts}]);
const para = (...parts) => ({kind: "paragraph", parts});
const item = (...of) => ({done: null, of});
const br = {kind: "br"};

line("a **b *c*** `d*e*`", "a ", {kind: "b", parts: ["b ", {kind: "i", parts: ["c"]}]}, " ", {kind: "code", text: "d*e*"});
line("snake_case_name 2 * 3 * 4 \\*x\\*", "snake_case_name 2 * 3 * 4 *x*");
line("``a`b`` ~~old~~", {kind: "code", text: "a`b"}, " ", {kind: "s", parts: ["old"]});
line("$a_1*b*c$ for $5 and $6, \\(x_1\\)", {kind: "math", text: "$a_1*b*c$"}, " for $5 and $6, ", {kind: "math", text: "\\(x_1\\)"});
line("one\ntwo", "one", br, "two");
line("<b>x</b> &amp;", "<b>x</b> &amp;");
const href = "https://a.b/c_(d)";
line(`[x](${href}), ${href}.`, {kind: "link", href, parts: ["x"]}, ", ", {kind: "link", href, parts: [href]}, ".");
line("![i](https://a.b/i.png)", {kind: "link", href: "https://a.b/i.png", parts: ["i"]});
for (const bad of ["javascript:alert(1)", "data:text/html,x", "//a.b", "vbscript:x", " javascript:x"]) {
  const text = `[x](${bad})`;
  assert(!JSON.stringify(parse(text)).includes('"link"'), text);
}
is("1. a\n   - b\n     - c\n\n2. d\n\n   e\n- f", [
  {kind: "ol", start: 1, items: [
    item(para("a"), {kind: "ul", start: 0, items: [item(para("b"), {kind: "ul", start: 0, items: [item(para("c"))]})]}),
    item(para("d"), para("e")),
  ]},
  {kind: "ul", start: 0, items: [item(para("f"))]},
]);
is("1. a\n  - b\n    - c\n2. d", [{kind: "ol", start: 1, items: [
  item(para("a"), {kind: "ul", start: 0, items: [item(para("b"), {kind: "ul", start: 0, items: [item(para("c"))]})]}),
  item(para("d")),
]}]);
is("- [x] a\n- [ ] b", [{kind: "ul", start: 0, items: [{done: true, of: [para("a")]}, {done: false, of: [para("b")]}]}]);
is("| a | b |\n|:-:|--:|\n| `x|y` | 1<br>2 |\n\nz", [
  {kind: "table", align: ["center", "right"], head: [["a"], ["b"]], rows: [[[{kind: "code", text: "x|y"}], ["1", br, "2"]]]},
  para("z"),
]);
is("a | b\nc", [para("a | b", br, "c")]);
is("```js\na\n\n  b\n```\n~~~\nopen", [{kind: "code", language: "js", text: "a\n\n  b"}, {kind: "code", language: "", text: "open"}]);
is("- a\n  ```\n  b\n  ```", [{kind: "ul", start: 0, items: [item(para("a"), {kind: "code", language: "", text: "b"})]}]);
is("# a *b* #\n\n---\n> c\n> - d", [
  {kind: "heading", level: 1, parts: ["a ", {kind: "i", parts: ["b"]}]}, {kind: "rule"},
  {kind: "quote", of: [para("c"), {kind: "ul", start: 0, items: [item(para("d"))]}]},
]);
is("$$\na*b*c\n$$\nd", [{kind: "formula", text: "$$\na*b*c\n$$"}, para("d")]);
is("$$ open", [para("$$ open")]);

// The time is linear: of a quadratic one, these texts would take minutes.
const parts = ["*a ", "[a](", "`a", "$a ", "**a", "_a_", "\\(", "> ", "- ", "|a", "|-", "#", "[", "***", "~~a ", "$$\n", "\n\n- x\n", "* * ", "<https://", "`x", "\t", "https://)", "  - a\n"];
for (const part of parts) {
  const start = performance.now();
  parse(part.repeat(100000));
  const took = performance.now() - start;
  assert(took < 10000, `${JSON.stringify(part)}: ${took} ms`);
}

// Messages of a conversation.
const turn = (question, answer, more) => ({question, answer, ...more});
const turns = [turn("a", "A"), turn("b", ""), turn("c", "C", {dropped: true}), turn("d", "old")];
assert.deepEqual(plain(messages({system: " s ", turns})), [
  {role: "system", content: "s"}, {role: "user", content: "a"}, {role: "assistant", content: "A"}, {role: "user", content: "d"},
]);
assert.equal(written(turn("q", "", {files: [{name: "f", text: "x\n```\ny\n"}]})), "f:\n````\nx\n```\ny\n````\n\nq");
const long = ["a", "b", "c", "d"].map((q) => turn(q.repeat(10), "x"));
assert(drop(long));
assert.deepEqual(long.map((one) => Boolean(one.dropped)), [true, true, false, false]);
assert(drop(long) && long[2].dropped && !long[3].dropped);
assert(!drop(long));
console.log("ok");
