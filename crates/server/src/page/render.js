// Turns parsed Markdown into elements. Text of a model enters the page as text nodes only.

function inlines(parent, parts) {
  for (const part of parts) {
    if (typeof part === "string") { parent.append(part); continue; }
    const {kind, text, href} = part;
    const node = kind === "math" ? make("span", text, "math") : make(kind === "link" ? "a" : kind, text);
    if (part.parts) inlines(node, part.parts);
    if (kind === "link") Object.assign(node, {href, target: "_blank", rel: "noopener noreferrer"});
    parent.append(node);
  }
  return parent;
}

function codeBlock({language, text}) {
  const box = make("div", undefined, "code"), head = make("div"), pre = make("pre");
  head.append(make("span", language), copier(() => text));
  pre.append(make("code", text));
  pre.tabIndex = 0;
  box.append(head, pre);
  return box;
}

function tableBlock({align, head, rows}) {
  const box = make("div", undefined, "table"), table = make("table");
  const row = (name, cells) => {
    const line = make("tr");
    cells.forEach((cell, i) => line.append(inlines(make(name, undefined, align[i]), cell)));
    return line;
  };
  const top = make("thead"), body = make("tbody");
  top.append(row("th", head));
  body.append(...rows.map((cells) => row("td", cells)));
  table.append(top, body);
  box.append(table);
  box.tabIndex = 0;
  return box;
}

function listBlock({kind, start, items}) {
  const list = make(kind);
  if (kind === "ol") list.start = start;
  for (const {done, of} of items) {
    const item = make("li", undefined, done === null ? "" : "task");
    if (done !== null) item.append(done ? "\u2611 " : "\u2610 ");
    item.append(...of.map(element));
    list.append(item);
  }
  return list;
}

function element(block) {
  switch (block.kind) {
    case "heading": return inlines(make(`h${Math.min(block.level + 1, 4)}`), block.parts);
    case "rule": return make("hr");
    case "formula": return make("div", block.text, "math");
    case "code": return codeBlock(block);
    case "table": return tableBlock(block);
    case "ol": case "ul": return listBlock(block);
    case "quote": {
      const quote = make("blockquote");
      quote.append(...block.of.map(element));
      return quote;
    }
    default: return inlines(make("p"), block.parts);
  }
}

// Shows `text` in `box`. Blocks that have not changed stay, with their selection and scroll position.
function render(box, text) {
  const blocks = parse(text), next = blocks.map((block) => JSON.stringify(block)), before = box.blocks ?? [];
  let same = 0;
  while (same < before.length && before[same] === next[same]) same += 1;
  while (box.childNodes.length > same) box.lastChild.remove();
  box.append(...blocks.slice(same).map(element));
  box.blocks = next;
}
