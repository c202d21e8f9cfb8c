// The conversation: its turns on the page, and the answer that is being written.

let conversation = fresh();
let stop = null; // ends the answer that is being written
let model = ""; // asked for; empty for the daemon's first
let slot = 0; // tokens of a slot

// The page follows the answer until the reader scrolls up, and again from the end on.
const log = $("log");
let following = true, lastTop = 0;
const distance = () => log.scrollHeight - log.scrollTop - log.clientHeight;
const follow = () => { if (following) log.scrollTop = log.scrollHeight; };
log.addEventListener("scroll", () => {
  if (distance() < 40) following = true;
  else if (log.scrollTop < lastTop) following = false;
  lastTop = log.scrollTop;
  $("down").hidden = distance() < 40;
});
$("down").addEventListener("click", () => { following = true; follow(); log.focus(); });
new ResizeObserver(follow).observe(log);

// A phone's keyboard would cover the conversation.
function toQuestion() {
  if (!matchMedia("(pointer: coarse)").matches) $("question").focus();
}

function notice(text) {
  $("notice").textContent = text;
  $("notice").hidden = !text;
}

function save() {
  conversation.when = Date.now();
  const first = conversation.turns[0];
  if (!first) return;
  conversation.title = (first.question || first.files[0].name).slice(0, 80);
  const stored = store.write(conversation);
  notice(stored ? "" : "This browser's storage is full or closed: the conversation is not stored. Delete others.");
  listConversations();
}

function attached(files) {
  return (files ?? []).map(({name, text}) => {
    const box = make("details", undefined, "attached"), body = make("pre", text);
    body.tabIndex = 0;
    box.append(make("summary", `${name}, ${size(text.length)}`), body);
    return box;
  });
}

function size(characters) {
  return characters < 2000 ? `${characters} characters` : `${Math.round(characters / 1000)} thousand characters`;
}

// Replaces the question by a form.
function edit(turn, article) {
  const box = make("textarea", turn.question), bar = make("footer");
  box.rows = Math.min(12, turn.question.split("\n").length + 1);
  box.setAttribute("aria-label", "Edited question");
  const later = conversation.turns.length - 1 - conversation.turns.indexOf(turn);
  const done = () => {
    if (stop || !box.value.trim()) return;
    turn.question = box.value.trim();
    repeat(turn);
  };
  const cancel = () => { redraw(turn).querySelector(".edit").focus(); };
  box.addEventListener("keydown", (event) => {
    if (enters(event)) { event.preventDefault(); done(); }
    if (event.key === "Escape") { event.stopPropagation(); cancel(); }
  });
  const words = later ? `Ask again, and delete ${later} later ${later > 1 ? "turns" : "turn"}` : "Ask again";
  bar.append(button(words, "idle", done), button("Cancel", "plain", cancel));
  article.replaceChildren(box, bar);
  box.focus();
  box.setSelectionRange(box.value.length, box.value.length);
}

function drawQuestion(turn, left) {
  const article = make("article", undefined, "user"), bar = make("footer");
  article.append(...attached(turn.files), make("div", turn.question, "text"), bar);
  bar.append(make("span", left ? "no longer sent to the model" : "", "took"));
  bar.append(copier(() => turn.question), button("Edit", "plain small edit idle", () => { if (!stop) edit(turn, article); }));
  return article;
}

function drawAnswer(turn) {
  const article = make("article", undefined, turn.error ? "assistant failed" : "assistant"), text = make("div", undefined, "text");
  const thought = make("details", undefined, "thought"), bar = make("footer");
  thought.append(make("summary", "Thoughts"), make("div", turn.thought));
  thought.hidden = !turn.thought;
  render(text, turn.answer);
  article.append(thought, text);
  if (turn.error) {
    const {message, hint} = turn.error, box = make("p", message, "bad");
    if (hint) box.append(make("br"), `Hint: ${hint}`);
    article.append(box);
  }
  article.append(bar);
  bar.append(make("span", turn.note ?? "", "took"));
  if (turn.answer) bar.append(copier(() => turn.answer));
  if (turn !== conversation.turns.at(-1)) return article;
  const again = turn.answer ? "Regenerate" : "Try again";
  bar.append(button(again, "plain small idle", () => { if (!stop) repeat(turn); }));
  if (turn.full && droppable(conversation.turns)) {
    bar.append(button("Drop the oldest turns and ask again", "plain idle", () => {
      if (stop || !drop(conversation.turns)) return;
      show();
      repeat(turn);
    }));
  }
  return article;
}

const sections = new Map();
function redraw(turn) {
  const left = turn.dropped || (!turn.answer && turn !== conversation.turns.at(-1));
  const section = make("section", undefined, left ? "turn dropped" : "turn");
  section.append(drawQuestion(turn, left), drawAnswer(turn));
  if (sections.has(turn)) sections.get(turn).replaceWith(section);
  else log.append(section);
  sections.set(turn, section);
  return section;
}

// Draws the whole conversation.
function show() {
  sections.clear();
  log.replaceChildren();
  conversation.turns.forEach(redraw);
  follow();
}

// Asks for a turn's answer again; later turns are deleted.
function repeat(turn) {
  conversation.turns.length = conversation.turns.indexOf(turn) + 1;
  toQuestion();
  answer(turn);
}

function ask(question, files) {
  const before = conversation.turns.at(-1);
  const turn = {question, files, answer: "", thought: ""};
  conversation.turns.push(turn);
  if (before) redraw(before); // only the last turn can be repeated
  answer(turn);
}

function summary(usage, timings) {
  if (!usage) return "";
  const seconds = timings ? (timings.total_ms - timings.first_token_ms) / 1000 : 0;
  const parts = [`${usage.prompt_tokens} tokens in, ${usage.completion_tokens} out`];
  if (timings) parts.push(`first after ${timings.first_token_ms.toFixed(0)} ms`);
  if (usage.completion_tokens > 1 && seconds > 0) {
    parts.push(`then ${((usage.completion_tokens - 1) / seconds).toFixed(1)} tok/s`);
  }
  if (slot) parts.push(`${(100 * usage.total_tokens / slot).toFixed(0)} % of the context`);
  return parts.join(", ");
}

async function answer(turn) {
  Object.assign(turn, {answer: "", thought: "", note: "", error: undefined, full: false});
  // Another conversation may be opened before this answer ends.
  const mine = conversation, body = {messages: messages(mine), stream: true, stream_options: {include_usage: true}};
  if (model) body.model = model;
  if (mine.temperature !== "") body.temperature = Number(mine.temperature);
  following = true;
  save();
  show();
  const article = sections.get(turn).querySelector(".assistant");
  const text = article.querySelector(".text"), thought = article.querySelector(".thought");
  article.setAttribute("aria-busy", "true");
  article.querySelector("footer").hidden = true;
  let painting = false;
  const paint = () => {
    painting = false;
    thought.hidden = !turn.thought;
    thought.firstChild.textContent = turn.answer ? "Thoughts" : "Thinking";
    thought.lastChild.textContent = turn.thought;
    render(text, turn.answer);
    follow();
  };
  busy(new AbortController());
  const {signal} = stop;
  let usage = null, timings = null, reason = null;
  try {
    const response = await post("v1/chat/completions", body, signal);
    for await (const {data} of events(response)) {
      if (data === "[DONE]") break;
      const part = JSON.parse(data);
      if (part.error) throw new Failure(part.error);
      const {delta, finish_reason} = part.choices[0] ?? {};
      turn.answer += delta?.content ?? "";
      turn.thought += delta?.reasoning_content ?? "";
      usage = part.usage ?? usage;
      timings = part.timings ?? timings;
      reason = finish_reason ?? reason;
      if (!painting) { painting = true; requestAnimationFrame(paint); }
    }
    if (!reason) throw new Failure({message: "the answer ended too early", hint: "ask again"});
    turn.note = summary(usage, timings);
    turn.full = reason === "length" && !(usage?.total_tokens < slot - 1);
    if (reason === "length") turn.note = `${turn.full ? "The context is full." : "Cut short."} ${turn.note}`;
  } catch (error) {
    if (error.name === "AbortError") turn.note = "stopped";
    else turn.error = {message: error.message, hint: error.hint, code: error.code};
    if (error.code === "context_length_exceeded") turn.full = true;
  }
  busy(null);
  // A conversation that was deleted meanwhile stays deleted.
  if (mine !== conversation) { if (store.read(mine.id)) store.write(mine); return; }
  const open = thought.open;
  redraw(turn).querySelector(".thought").open = open;
  save();
  follow();
}

function busy(controller) {
  stop = controller;
  document.body.classList.toggle("busy", Boolean(controller));
  $("send").textContent = controller ? "Stop" : "Send";
}
