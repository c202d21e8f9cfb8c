// Parses Markdown into plain objects `{kind, ...}`; render.js turns them into elements. Work is linear in the length
// of the text, and nesting is bounded: the text comes from a model.

const DEEPEST = 8;

function indentOf(line) {
  return line.length - line.trimStart().length;
}

// Bullet or number at the start of a line: where it and its text begin.
function marker(line) {
  const found = /^( *)([-*+]|\d{1,9}[.)])(?:( +)|$)/.exec(line);
  if (!found || rule(line)) return null;
  const [all, before, mark, space = " "] = found;
  const ordered = mark.length > 1;
  return {
    indent: before.length, ordered, number: ordered ? parseInt(mark, 10) : 0,
    offset: before.length + mark.length + Math.min(space.length, 4), rest: line.slice(all.length),
  };
}

function rule(line) {
  const marks = line.replaceAll(" ", "");
  return marks.length > 2 && "-*_".includes(marks[0]) && marks === marks[0].repeat(marks.length);
}

function heading(line) {
  const found = /^ {0,3}(#{1,6}) /.exec(line);
  if (!found) return null;
  let text = line.slice(found[0].length).trim(), end = text.length;
  while (text[end - 1] === "#") end -= 1;
  if (end === 0 || text[end - 1] === " ") text = text.slice(0, end).trim();
  return {kind: "heading", level: found[1].length, parts: inline(text)};
}

function fence(line) {
  const found = /^ *(`{3,}|~{3,})([^`]*)$/.exec(line);
  return found && {mark: found[1], language: found[2].trim(), indent: indentOf(line)};
}

// Cells of a table row. A bar in a code span or after a backslash does not separate.
function cells(line) {
  const row = [];
  let cell = "", code = false;
  const text = line.trim();
  for (let i = text[0] === "|" ? 1 : 0; i < text.length; i++) {
    const c = text[i];
    if (c === "\\" && text[i + 1] === "|") { cell += "|"; i += 1; continue; }
    if (c === "`") code = !code;
    if (c === "|" && !code) { row.push(cell.trim()); cell = ""; continue; }
    cell += c;
  }
  if (cell.trim() || code) row.push(cell.trim());
  return row;
}

function alignments(line) {
  if (!/^[ |:-]+$/.test(line) || !line.includes("-")) return null;
  const row = cells(line);
  if (!row.length || !row.every((cell) => /^:?-+:?$/.test(cell))) return null;
  return row.map((cell) => cell.endsWith(":") ? (cell.startsWith(":") ? "center" : "right") : "");
}

function starts(line) {
  return marker(line) || /^ {0,3}(#{1,6} |>)/.test(line) || fence(line) || rule(line);
}

// Blocks of a whole text.
function parse(text) {
  const lines = text.replaceAll("\r\n", "\n").split("\n");
  const spaces = (blank) => blank.replaceAll("\t", "    ");
  return blocks(lines.map((line) => line.replace(/^[ \t]+/, spaces)), 0);
}

function blocks(lines, depth) {
  const all = [];
  const closed = {$$: true, "\\]": true}; // false once no line has that mark
  let words = [];
  const flush = () => {
    if (words.length) all.push({kind: "paragraph", parts: inline(words.join("\n"))});
    words = [];
  };
  for (let i = 0; i < lines.length;) {
    const line = lines[i], opens = fence(line);
    let block = null, next = i + 1;
    if (!line.trim()) {
      flush();
    } else if (opens) {
      [block, next] = code(lines, i, opens);
    } else if ((block = heading(line))) {
      // Complete.
    } else if (rule(line)) {
      block = {kind: "rule"};
    } else if (depth < DEEPEST && /^ {0,3}>/.test(line)) {
      while (next < lines.length && /^ {0,3}>/.test(lines[next])) next += 1;
      const inside = lines.slice(i, next).map((one) => one.replace(/^ {0,3}> ?/, ""));
      block = {kind: "quote", of: blocks(inside, depth + 1)};
    } else if (depth < DEEPEST && marker(line)) {
      [block, next] = list(lines, i, depth);
    } else if (line.includes("|") && next < lines.length && alignments(lines[next])?.length === cells(line).length) {
      [block, next] = table(lines, i);
    } else {
      const found = formula(lines, i, closed);
      if (found) [block, next] = found;
      else words.push(line.trim());
    }
    if (block) { flush(); all.push(block); }
    i = next;
  }
  flush();
  return all;
}

function code(lines, i, {mark, language, indent}) {
  const text = [];
  for (i += 1; i < lines.length; i++) {
    const trimmed = lines[i].trim();
    if (trimmed.startsWith(mark) && trimmed === mark[0].repeat(trimmed.length)) break;
    text.push(lines[i].slice(Math.min(indent, indentOf(lines[i]))));
  }
  return [{kind: "code", language, text: text.join("\n")}, i + 1];
}

// A formula on lines of its own stays text, with its marks.
function formula(lines, i, closed) {
  const first = lines[i].trim();
  const ends = first.startsWith("$$") ? "$$" : first.startsWith("\\[") ? "\\]" : null;
  if (!ends || !closed[ends]) return null;
  let last = i;
  if (!first.slice(2).includes(ends)) {
    for (last += 1; last < lines.length && !lines[last].includes(ends);) last += 1;
    closed[ends] = last < lines.length;
  }
  if (last >= lines.length || !lines[last].trim().endsWith(ends)) return null;
  return [{kind: "formula", text: lines.slice(i, last + 1).join("\n").trim()}, last + 1];
}

function table(lines, i) {
  const align = alignments(lines[i + 1]), row = (line) => cells(line).slice(0, align.length).map((cell) => inline(cell));
  const block = {kind: "table", align, head: row(lines[i]), rows: []};
  for (i += 2; i < lines.length && lines[i].includes("|") && !starts(lines[i]); i++) block.rows.push(row(lines[i]));
  return [block, i];
}

// Lines of an item are those that are indented more than its mark, and its paragraph's next lines.
function list(lines, i, depth) {
  const first = marker(lines[i]);
  const block = {kind: first.ordered ? "ol" : "ul", start: first.number, items: []};
  const blank = (line) => !line.trim();
  for (let item = first; item;) {
    const body = [item.rest];
    let strip = null;
    for (i += 1; i < lines.length; i++) {
      let after = i;
      while (after < lines.length && blank(lines[after])) after += 1;
      if (after === lines.length) { i = after; break; }
      const indent = indentOf(lines[after]);
      const inside = indent >= first.indent + 2;
      if (!inside && (after > i || starts(lines[after]))) break;
      for (; i < after; i++) body.push("");
      if (inside) strip ??= Math.min(indent, item.offset);
      body.push(lines[i].slice(Math.min(indent, strip ?? indent)));
    }
    const task = /^\[([ xX])\] /.exec(body[0]);
    if (task) body[0] = body[0].slice(4);
    block.items.push({done: task ? task[1] !== " " : null, of: blocks(body, depth + 1)});
    while (i < lines.length && blank(lines[i])) i += 1;
    item = i < lines.length ? marker(lines[i]) : null;
    if (item && (item.ordered !== first.ordered || item.indent > first.indent + 1)) item = null;
  }
  return [block, i];
}

const SPECIAL = /\\[(\[]|\\[!-\/:-@[-`{-~]|`+|\*\*|__|~~|\*|_|\$\$?|\[|<br ?\/?>|<?https?:\/\/[^\s<>]+>?|\n/g;
const LINK = /\[((?:[^[\]\\]|\\.)*)\]\(\s*<?([^\s<>()]*(?:\([^\s()]*\)[^\s<>()]*)*)>?(?:\s+"[^"]*")?\s*\)/y;
const EMPHASIS = {"**": "b", __: "b", "*": "i", _: "i", "~~": "s"};
const LETTER = /[\p{L}\p{N}]/u;

// Texts and marked parts of a paragraph.
function inline(text, depth = 0) {
  const parts = [], missing = new Set();
  let plain = "", end = 0;
  const literal = (string) => { plain += string; };
  const add = (part) => {
    if (plain) parts.push(plain);
    plain = "";
    parts.push(part);
  };
  const find = new RegExp(SPECIAL);
  for (let found; (found = find.exec(text));) {
    literal(text.slice(end, found.index));
    const mark = found[0], at = found.index;
    end = at + mark.length;
    const span = () => {
      if (mark[0] === "`") return within(text, mark, end, missing, "code");
      if (mark[0] === "$") return within(text, mark, end, missing, "math");
      if (mark === "\\(") return within(text, "\\)", end, missing, "math", mark);
      if (mark === "\\[") return within(text, "\\]", end, missing, "math", mark);
      if (EMPHASIS[mark] && depth < DEEPEST) return emphasis(text, mark, at, missing, depth);
      if (mark === "[") return link(text, at, depth);
      if (mark.includes("http")) return address(mark, at);
      if (mark === "\n" || mark.startsWith("<br")) return [{kind: "br"}, end];
      return null;
    };
    const made = span();
    if (made) {
      if (made[0].kind === "link" && plain.endsWith("!") && mark === "[") plain = plain.slice(0, -1);
      add(made[0]);
      end = made[1];
    } else {
      literal(mark[0] === "\\" ? mark.slice(1) : mark);
    }
    find.lastIndex = end;
  }
  literal(text.slice(end));
  if (plain) parts.push(plain);
  return parts;
}

// Code and formulas, up to the same mark; nothing inside is parsed.
function within(text, mark, from, missing, kind, opening = mark) {
  if (missing.has(mark)) return null;
  let at = text.indexOf(mark, from);
  if (kind === "code") {
    // A run of backticks of the same length.
    while (at >= 0 && (text[at + mark.length] === "`" || (at > from && text[at - 1] === "`"))) {
      while (text[at] === "`") at += 1;
      at = text.indexOf(mark, at);
    }
  }
  if (at < 0) { missing.add(mark); return null; }
  const inside = text.slice(from, at), after = at + mark.length;
  if (kind === "code") {
    const padded = inside.startsWith(" ") && inside.endsWith(" ") && inside.trim();
    return [{kind, text: padded ? inside.slice(1, -1) : inside}, after];
  }
  // `$5 and $6` is money.
  if (mark === "$" && (!inside || /^\s|\s$|\n/.test(inside) || /\d/.test(text[after] ?? ""))) return null;
  return [{kind, text: opening + inside + mark}, after];
}

function emphasis(text, mark, at, missing, depth) {
  const from = at + mark.length, word = mark[0] === "_";
  if (missing.has(mark) || /\s/.test(text[from] ?? " ") || (word && LETTER.test(text[at - 1] ?? ""))) return null;
  for (let to = from;;) {
    to = text.indexOf(mark, to);
    if (to < 0) { missing.add(mark); return null; }
    let run = to;
    while (text[run] === mark[0]) run += 1;
    // Of `***` the inner marks end first.
    const close = run - mark.length;
    const fits = mark.length === 2 ? run - to >= 2 : (run - to) % 2 === 1;
    if (fits && close > from - 1 && close !== from && !/\s/.test(text[to - 1]) && !(word && LETTER.test(text[run] ?? ""))) {
      return [{kind: EMPHASIS[mark], parts: inline(text.slice(from, close), depth + 1)}, run];
    }
    to = run;
  }
}

function allowed(href) {
  return /^(https?:\/\/|mailto:)/i.test(href);
}

// An image becomes a link too: the page loads nothing.
function link(text, at, depth) {
  LINK.lastIndex = at;
  const found = depth < DEEPEST && LINK.exec(text);
  if (!found || !allowed(found[2])) return null;
  const parts = found[1] ? inline(found[1], DEEPEST) : [found[2]];
  return [{kind: "link", href: found[2], parts}, at + found[0].length];
}

function address(written, at) {
  if (written.startsWith("<")) {
    if (!written.endsWith(">")) return null;
    const href = written.slice(1, -1);
    return [{kind: "link", href, parts: [href]}, at + written.length];
  }
  let href = written;
  const open = (href.match(/\(/g) ?? []).length;
  let close = (href.match(/\)/g) ?? []).length;
  for (;;) {
    const last = href.at(-1);
    if (last === ")" && close > open) close -= 1;
    else if (!".,;:!?'\"*_~]`>|".includes(last)) break;
    href = href.slice(0, -1);
  }
  return [{kind: "link", href, parts: [href]}, at + href.length];
}
