// The dialog of models: which are loaded, which can be loaded, and the load itself.

const bytes = (n) => n === null || n === undefined ? "" : n < 1e9 ? `${(n / 1e6).toFixed(0)} MB` : `${(n / 1e9).toFixed(1)} GB`;

// Remembers the model that requests ask for.
function choose(id) {
  model = id;
  tab.set("model", id);
  $("picker").close();
  look();
}

function modelRow(name, about, act, acts) {
  const item = make("li"), text = make("span", name);
  if (about) text.append(" ", make("small", about, "quiet"));
  item.append(text);
  if (acts) {
    const pick = button(act, "plain", acts);
    pick.setAttribute("aria-label", `${act} ${name}`);
    item.append(pick);
  }
  return item;
}

// Ids that requests may ask for come from `/v1/models`; the files that may be loaded from the daemon's own list.
async function listModels() {
  const [served, known] = await Promise.all(["v1/models", "orin/v1/models"].map(async (path) => (await call(path)).json()));
  const loaded = new Set([known.loaded?.id, ...(known.residents ?? []).filter((one) => one.model).map((one) => one.name)]);
  const rows = served.data.map(({id}) => {
    const used = id === (model || known.loaded?.id), base = loaded.has(id) || [...loaded].some((one) => one && id.startsWith(`${one}:`));
    return modelRow(id, `${base ? "loaded" : "loads when it is asked"}${used ? ", in use" : ""}`, "Use", used ? null : () => choose(id));
  });
  const others = known.available.filter((one) => !served.data.some(({id}) => id === one.model));
  for (const {model: name, bytes: length, synthetic, why} of others) {
    const about = why ? `cannot be loaded: ${why}` : [bytes(length), synthetic ? "random weights, for tests" : ""].filter(Boolean).join(", ");
    rows.push(modelRow(name, about, "Load", why ? null : () => load(name)));
  }
  $("models").replaceChildren(...rows);
}

const PHASES = {synthesise: "creating", unload: "unloading the other model", load: "loading"};

async function load(name) {
  const body = {model: name}, beside = $("beside").checked;
  if (beside) body.beside = true;
  if ($("context").value) body.context = Number($("context").value);
  const tell = (text, bad) => {
    $("loading").textContent = text;
    $("loading").className = bad ? "bad" : "";
  };
  $("models").inert = true;
  $("loaded").hidden = false;
  $("loaded").removeAttribute("value");
  tell(`loading ${name}`);
  try {
    for await (const {event, data} of events(await post("orin/v1/models", body))) {
      const part = JSON.parse(data);
      if (event === "error") throw new Failure(part.error);
      if (event === "result") { tell(`${part.id} is loaded`); model = beside ? part.id : ""; }
      if (event !== "progress") continue;
      tell(`${PHASES[part.phase] ?? part.phase} ${name}${part.why ? `: ${part.why}` : ""}`);
      if (part.total) $("loaded").value = part.done / part.total;
    }
    tab.set("model", model);
  } catch (error) {
    tell(error.message + (error.hint ? ` (${error.hint})` : ""), true);
  }
  $("models").inert = false;
  $("loaded").hidden = true;
  $("close").focus();
  look();
  await listModels().catch(() => {});
}

$("model").addEventListener("click", async () => {
  $("loading").textContent = "";
  $("picker").showModal();
  try {
    await listModels();
  } catch (error) {
    $("loading").textContent = error.message;
    $("loading").className = "bad";
  }
});
