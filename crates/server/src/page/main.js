// Panels, keys, and the start of the page.

const narrow = () => matchMedia("(max-width: 64rem)").matches;

function panel(control, id, open = $(id).hidden) {
  $(id).hidden = !open;
  $(control).setAttribute("aria-expanded", String(open));
}
for (const [control, id, other, others] of [["chats", "list", "meters", "machine"], ["meters", "machine", "chats", "list"]]) {
  $(control).addEventListener("click", () => {
    panel(control, id);
    if (narrow() && !$(id).hidden) panel(other, others, false);
  });
  panel(control, id, !narrow());
}

document.addEventListener("keydown", (event) => {
  if (event.key !== "Escape" || document.querySelector("dialog[open]")) return;
  if (stop) stop.abort();
  else if (narrow()) for (const [control, id] of [["chats", "list"], ["meters", "machine"]]) panel(control, id, false);
});
document.addEventListener("visibilitychange", () => { if (!document.hidden) look(); });

$("shown").addEventListener("submit", () => {
  token = $("token").value.trim();
  tab.set("token", token);
  $("token").value = "";
  look();
});

model = tab.get("model");
open(store.read(tab.get("open")) ?? fresh()); // as it was before a reload
look();
