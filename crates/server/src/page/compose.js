// The form below the conversation: question, attachments, options; and the list of conversations.

const LARGEST = 1 << 20; // characters of an attachment
let files = [];

function showFiles() {
  $("files").replaceChildren(...files.map((file) => {
    const item = make("li", `${file.name}, ${size(file.text.length)} `);
    const remove = button("\u00d7", "plain small", () => {
      files = files.filter((other) => other !== file);
      showFiles();
      $("question").focus();
    });
    remove.setAttribute("aria-label", `Remove ${file.name}`);
    item.append(remove);
    return item;
  }));
}

async function attach(list) {
  notice("");
  for (const file of list) {
    const text = file.size > LARGEST ? null : await file.text();
    if (text === null) notice(`${file.name} has ${size(file.size)}, more than the ${size(LARGEST)} that can be attached.`);
    else if (/[\0\ufffd]/.test(text)) notice(`${file.name} is not a text file in UTF-8.`);
    else files.push({name: file.name, text});
  }
  showFiles();
}

const enters = (event) => event.key === "Enter" && !event.shiftKey && !event.isComposing;

function fit() {
  const box = $("question");
  box.style.height = "auto";
  box.style.height = `${box.scrollHeight + 2}px`;
}

function send() {
  const question = $("question").value.trim();
  if (stop || (!question && !files.length)) return;
  conversation.system = $("system").value;
  conversation.temperature = $("temperature").value;
  $("question").value = "";
  fit();
  const attachments = files;
  files = [];
  showFiles();
  ask(question, attachments);
}

// Opens a conversation, and ends the answer in the one before it.
function open(one) {
  stop?.abort();
  conversation = one;
  tab.set("open", one.id);
  $("system").value = one.system ?? "";
  $("temperature").value = one.temperature ?? "";
  following = true;
  notice("");
  show();
  listConversations();
  if (narrow()) panel("chats", "list", false);
  toQuestion();
}

function listConversations() {
  const held = document.activeElement?.dataset?.id;
  $("conversations").replaceChildren(...store.all().map((one) => {
    const item = make("li"), pick = button(one.title || "Untitled", "plain small", () => open(store.read(one.id) ?? fresh()));
    pick.title = new Date(one.when).toLocaleString();
    pick.dataset.id = one.id;
    if (one.id === conversation.id) pick.setAttribute("aria-current", "true");
    const remove = button("\u00d7", "plain small", () => {
      if (!confirm(`Delete the conversation "${one.title}"?`)) return;
      store.remove(one.id);
      if (one.id === conversation.id) open(fresh());
      else listConversations();
    });
    remove.setAttribute("aria-label", `Delete ${one.title}`);
    item.append(pick, remove);
    return item;
  }));
  if (held) document.querySelector(`[data-id="${held}"]`)?.focus();
}

$("form").addEventListener("submit", (event) => {
  event.preventDefault();
  if (stop) stop.abort();
  else send();
});
$("question").addEventListener("input", fit);
$("question").addEventListener("keydown", (event) => {
  if (!enters(event)) return;
  event.preventDefault();
  send();
});
$("question").addEventListener("paste", (event) => {
  if (!event.clipboardData.files.length) return;
  event.preventDefault();
  attach(event.clipboardData.files);
});
$("attach").addEventListener("click", () => $("chosen").click());
$("chosen").addEventListener("change", async () => {
  await attach($("chosen").files);
  $("chosen").value = "";
  $("question").focus();
});
document.addEventListener("dragover", (event) => event.preventDefault());
document.addEventListener("drop", (event) => {
  event.preventDefault();
  attach(event.dataTransfer.files);
});
$("again").addEventListener("click", () => open(fresh()));
addEventListener("storage", listConversations); // another tab has changed them
