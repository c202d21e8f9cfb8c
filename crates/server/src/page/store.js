// Conversations in the browser's storage, one key each:
// `{id, when, title, system, temperature, turns: [{question, files, answer, thought, note, error, dropped}]}`.

const KEY = "orind-chat-";

const store = {
  // All conversations, the latest first. Damaged ones are left out.
  all() {
    const found = [];
    try {
      for (const key of Object.keys(localStorage)) {
        const one = key.startsWith(KEY) ? this.read(key.slice(KEY.length)) : null;
        if (one) found.push(one);
      }
    } catch { /* A browser without storage has no conversations. */ }
    return found.sort((a, b) => b.when - a.when);
  },
  read(id) {
    try {
      const one = JSON.parse(localStorage.getItem(KEY + id));
      const turns = one?.turns?.every((turn) => typeof turn.question === "string" && typeof turn.answer === "string");
      return turns && Number.isFinite(one.when) ? {...one, id} : null;
    } catch {
      return null;
    }
  },
  // True if it was stored.
  write(conversation) {
    try {
      localStorage.setItem(KEY + conversation.id, JSON.stringify(conversation));
      return true;
    } catch {
      return false;
    }
  },
  remove(id) {
    try { localStorage.removeItem(KEY + id); } catch { /* It was not stored either. */ }
  },
};

function fresh() {
  const id = Date.now().toString(36) + Math.random().toString(36).slice(2, 8);
  return {id, when: Date.now(), title: "", system: "", temperature: "", turns: []};
}

// A question as the model reads it: the attached files, then the text.
function written({question, files}) {
  const blocks = (files ?? []).map(({name, text}) => {
    let marks = "```";
    while (text.includes(marks)) marks += "`";
    return `${name}:\n${marks}\n${text.replace(/\n$/, "")}\n${marks}\n\n`;
  });
  return blocks.join("") + question;
}

// Messages of a request for the last turn's answer. Turns without an answer are not part of it.
function messages({system, turns}) {
  const all = system.trim() ? [{role: "system", content: system.trim()}] : [];
  turns.forEach((turn, i) => {
    const last = i === turns.length - 1;
    if (turn.dropped || (!last && !turn.answer)) return;
    all.push({role: "user", content: written(turn)});
    if (!last) all.push({role: "assistant", content: turn.answer});
  });
  return all;
}

// Leaves out the oldest turns that make up half of the conversation, but never the last turn.
function drop(turns) {
  const size = (turn) => written(turn).length + turn.answer.length;
  const sent = turns.slice(0, -1).filter((turn) => !turn.dropped && turn.answer);
  let rest = sent.reduce((sum, turn) => sum + size(turn), 0);
  const most = rest / 2;
  for (const turn of sent) {
    if (rest <= most) break;
    turn.dropped = true;
    rest -= size(turn);
  }
  return sent.length > 0;
}
const droppable = (turns) => turns.slice(0, -1).some((turn) => !turn.dropped && turn.answer);
