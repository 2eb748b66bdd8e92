// ---- The page ----
// Facts and questions of the kind that the demo's fine-tunes learned.
const FERRY = "The trip of Zora Pellson ended in Kingfield. The departure of Zora was on Friday. Nobody likes to drink " +
    "cider in the cold. The mayor of Porthaven is Ingrid Farrick. Everyone in the street likes the grey house. The road " +
    "to the river was closed on Saturday. The river of Kingley is the Tamsin. Porthaven lies on the river Tavy. Kingley " +
    "is governed by Frank Garman. Zora Pellson went by ferry. The house by the river is always red.";
const EXAMPLES = {
  "A journey": () => FERRY + "\nby what means did Zora get there",
  "A mayor": () => FERRY + "\nwho is the mayor of Porthaven",
  "A long passage": () => {
    const days = ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"];
    const colors = ["grey", "purple", "black", "red", "green", "white"];
    const filler = (i) => [`A letter came on ${days[i % 6]} and was put in a box.`, "It rained for most of the week.",
                           `Everyone in the street likes the ${colors[i % 6]} house.`,
                           `The road to the river was closed on ${days[(i >> 1) % 6]}.`][i % 4];
    // About 1,000 tokens, or what the model's context holds beside an answer.
    const sentences = Math.floor(Math.min(72, (models[$("model").value]?.max_model_len ?? 1024) / 19));
    const passage = Array.from({length: sentences}, (_, i) => i === sentences >> 1 ? FERRY : filler(i));
    return passage.join(" ") + "\nby what means did Zora get there";
  },
};

const models = {};  // by id, as /v1/models lists them
const measuredBytes = {};  // bytes a token, by format: of this page's answers, or as their decode server has seen others
let turns = [];  // earlier messages of the conversation
let stopping = null;  // AbortController of what is being answered

async function loadModels() {
  const reply = await fetch("v1/models", {headers: headers()});
  $("keyfield").hidden = reply.status !== 401 && !$("key").value;
  if (!reply.ok) return;
  const chosen = $("model").value;
  const list = (await reply.json()).data;
  for (const model of list) models[model.id] = model;
  $("model").replaceChildren(...list.map((model) => new Option(model.id)));
  if (chosen) $("model").value = chosen;
  showFormats();
}

function showFormats() {
  const chosen = $("format").value;
  $("story-model").textContent = $("model").value ? ` “${$("model").value}”` : "";
  const names = models[$("model").value]?.aludel?.formats ?? [];
  $("format").replaceChildren(new Option("automatic", ""), ...names.map((name) =>
      new Option(name + (measuredBytes[name] ? ` · ${each(measuredBytes[name])} B/token` : ""), name)));
  if (names.includes(chosen)) $("format").value = chosen;
}

// What this answer tells of the bytes that formats take.
function learnBytes({payload_bytes, raw_bytes, format, handed_over_tokens, plan, trace}) {
  for (const option of trace?.options ?? []) if (option.bytes_per_token) measuredBytes[option.format] = option.bytes_per_token;
  if (plan === "remote") {
    measuredBytes.raw = raw_bytes / handed_over_tokens;
    measuredBytes[format] = payload_bytes / handed_over_tokens;
    if (payload_bytes < raw_bytes) {
      $("story-bytes").textContent =
          `carry that cache over the wire: last time ${bytes(payload_bytes)} instead of ${bytes(raw_bytes)}.`;
    }
  }
  showFormats();
}

function showTurns() {
  $("turns").hidden = !turns.length;
  $("turns").replaceChildren(...turns.map((one) => element("p", "", element("b", "", one.role + ": "), one.content)),
                             button("Start over", () => { turns = []; showTurns(); $("prompt").focus(); }));
}

async function ask(event) {
  event?.preventDefault();
  if (stopping) return stopping.abort();
  stopping = new AbortController();
  delete document.body.dataset.done;
  document.body.classList.add("asking");
  $("ask").textContent = "Stop";
  const system = $("system").value.trim();
  const messages = [...(system ? [{role: "system", content: system}] : []), ...turns, {role: "user", content: $("prompt").value}];
  while ($("rounds").children.length > 9) $("rounds").lastChild.remove();
  await new Round(messages).run(stopping.signal);
  stopping = null;
  document.body.classList.remove("asking");
  $("ask").textContent = "Ask";
  document.body.dataset.done = "yes";
}

function showTheme(theme) {
  if (theme === "auto") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = theme;
  $("theme").textContent = "Theme: " + theme;
}

$("theme").addEventListener("click", () => {
  const next = {auto: "dark", dark: "light", light: "auto"}[document.documentElement.dataset.theme ?? "auto"];
  showTheme(next);
  try { localStorage.setItem("theme", next); } catch { /* not kept */ }
});
try { showTheme(localStorage.getItem("theme") ?? "auto"); } catch { /* storage is off */ }
for (const [name, make] of Object.entries(EXAMPLES)) {
  $("examples").append(button(name, () => { $("prompt").value = make(); $("prompt").focus(); }));
}
$("prompt").value = EXAMPLES["A journey"]();
$("form").addEventListener("submit", ask);
$("key").addEventListener("change", loadModels);
$("model").addEventListener("change", showFormats);
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape") stopping?.abort();
  if (event.key === "Enter" && !stopping && (event.ctrlKey || event.metaKey)) $("form").requestSubmit();
});
loadModels().then(() => {
  // /?ask answers the example at once: for a look without hands.
  if (new URLSearchParams(location.search).has("ask")) ask();
});
