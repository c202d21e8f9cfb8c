// The daemon's status: state and model in the header, speed, memory, clocks and power next to the conversation.

const series = new Map();
const rows = new Map();
let before = null;

function plot(parts, name, value) {
  const values = series.get(name) ?? [];
  values.push(value);
  if (values.length > 60) values.shift();
  series.set(name, values);
  if (!parts.line) {
    const space = "http://www.w3.org/2000/svg";
    const drawing = document.createElementNS(space, "svg");
    drawing.setAttribute("viewBox", "0 0 59 28");
    drawing.setAttribute("preserveAspectRatio", "none");
    drawing.setAttribute("aria-hidden", "true");
    parts.line = document.createElementNS(space, "polyline");
    drawing.append(parts.line);
    parts.box.append(drawing);
  }
  const most = Math.max(...values, 1e-9), skip = 60 - values.length;
  parts.line.setAttribute("points", values.map((v, i) => `${skip + i},${27 - 26 * v / most}`).join(" "));
}

// A row of the list; `part` is its share of a maximum, `history` the value to plot.
function row(name, value, note, part, history) {
  let parts = rows.get(name);
  if (!parts) {
    const box = make("div");
    parts = {box, dd: make("dd"), meter: null, line: null};
    box.append(make("dt", name), parts.dd);
    $("numbers").append(box);
    rows.set(name, parts);
  }
  parts.box.hidden = value === null;
  if (value === null) return;
  parts.dd.replaceChildren(value, ...(note ? [" ", make("small", note)] : []));
  if (part !== undefined) {
    if (!parts.meter) {
      parts.meter = make("meter");
      parts.meter.setAttribute("aria-label", name);
      parts.box.append(parts.meter);
    }
    parts.meter.value = part;
  }
  if (history !== undefined) plot(parts, name, history);
}

const mega = (clock) => clock?.now_hz ? `${(clock.now_hz / 1e6).toFixed(0)} MHz` : null;
const limit = (clock) => clock?.max_hz ? `of ${(clock.max_hz / 1e6).toFixed(0)}` : "";

function header({state, loading, model: first, residents}) {
  const percent = (progress) => `${(100 * progress).toFixed(0)} %`;
  const names = {
    ready: "ready", empty: "no model is loaded", exclusive: `${state.what} has the device`,
    loading: `loading ${percent(state.progress ?? 0)}`,
  };
  const more = loading ? `, loading ${loading.model} ${percent(loading.progress)}` : "";
  $("state").textContent = (names[state.name] ?? state.name) + more;
  $("state").className = state.name === "empty" ? "bad" : "";
  $("state").title = state.last_error?.message ?? "";
  const used = model && model !== first?.id ? (residents ?? []).find((one) => one.name === model)?.model : first;
  slot = used?.context ?? first?.context ?? 0;
  $("model").textContent = model || first?.id || "no model";
  $("model").title = first && !model ? `${first.file_type} on ${first.device.name}` : "";
}

function report(status, at) {
  header(status);
  const {model: first, requests, roof} = status;
  const now = status.machine?.now ?? {};
  const then = before?.status.pid === status.pid ? before : null;
  const seconds = then ? Math.max((at - then.at) / 1000, .001) : 1;
  const rate = (key) => then ? Math.max(0, requests[key] - then.status.requests[key]) / seconds : 0;
  const decode = rate("completion_tokens"), prefill = rate("prompt_tokens");
  row("Decode", `${decode.toFixed(1)} tok/s`, "", undefined, decode);
  row("Prefill", `${prefill.toFixed(1)} tok/s`, "", undefined, prefill);
  const read = rate("steps") * (first?.step_bytes ?? 0);
  const roofs = roof?.bytes_per_second > 0;
  row("Weights read", `${(read / 1e9).toFixed(1)} GB/s`,
    roofs ? `${(100 * read / roof.bytes_per_second).toFixed(0)} % of roof, ${roof.source}` : "",
    roofs ? Math.min(1, read / roof.bytes_per_second) : undefined);
  row("Requests", `${requests.active} of ${first?.slots ?? 0} slots`, `${requests.queued} of ${requests.queue_limit} wait`);
  const room = first ? first.slots * first.context : 0;
  row("KV cache", room ? `${(100 * requests.kv_tokens / room).toFixed(0)} %` : null, `${requests.kv_tokens} tokens`,
    room ? requests.kv_tokens / room : undefined);
  row("GPU clock", mega(now.gpu_clock), limit(now.gpu_clock));
  row("Memory clock", mega(now.memory_clock), limit(now.memory_clock));
  const fastest = (now.clusters ?? []).map((c) => c.clock).sort((a, b) => (b.now_hz ?? 0) - (a.now_hz ?? 0))[0];
  row("CPU clock", mega(fastest), limit(fastest));
  const rails = now.rails ?? [];
  const watts = rails.find((rail) => rail.all)?.watts ?? (rails.length ? rails.reduce((sum, rail) => sum + rail.watts, 0) : null);
  row("Power", watts === null ? null : `${watts.toFixed(1)} W`,
    rails.filter((rail) => !rail.all).map((rail) => `${rail.name} ${rail.watts.toFixed(1)}`).join(", "), undefined,
    watts ?? undefined);
  const hot = (now.zones ?? []).reduce((most, zone) => !most || zone.celsius > most.celsius ? zone : most, null);
  row("Heat", hot ? `${hot.celsius.toFixed(0)} °C` : null, hot?.name ?? "", undefined, hot?.celsius);
  const alarms = (now.alarms ?? []).filter((alarm) => alarm.active).map((alarm) => alarm.name).join(", ");
  row("Alarms", alarms || null, "");
  before = {status, at};
}

let timer = 0;
async function look() {
  clearTimeout(timer);
  try {
    const response = await call("orin/v1/status");
    report(await response.json(), performance.now());
  } catch (error) {
    $("state").textContent = error.message;
    $("state").className = "bad";
  }
  clearTimeout(timer);
  timer = setTimeout(look, document.hidden ? 10000 : 1000);
}
