"use strict";
const $ = (id) => document.getElementById(id);
const STAGES = {gateway: "gateway", queue: "queue", prefill: "prefill", encode: "encode", transfer: "waiting for frames",
                reconstruct: "reconstruct", recompute: "recomputed tokens", first_decode: "first decode", held: "held back"};
const WARM = 1e-3;  // Seconds at the prefill server and on the wire, below which it must have had the codes.
const SHOWN = 5e-6;  // Seconds; shorter stages are left out.
const DAY_MS = 86400000;

const element = (name, className, ...content) => {
  const made = document.createElement(name);
  if (className) made.className = className;
  made.append(...content);
  return made;
};
const button = (label, act) => {
  const made = element("button", "", label);
  made.type = "button";
  made.addEventListener("click", act);
  return made;
};
const time = (seconds) => seconds >= 1 ? seconds.toFixed(2) + " s" : (seconds * 1e3).toFixed(seconds < .01 ? 2 : 1) + " ms";
const bytes = (count) => count < 1024 ? count + " B" : count < 1048576 ? (count / 1024).toFixed(1) + " KiB"
                                                                       : (count / 1048576).toFixed(2) + " MiB";
const rate = (bits) => {
  const [unit, name] = bits >= 1e9 ? [1e9, "Gb/s"] : bits >= 1e6 ? [1e6, "Mb/s"] : [1e3, "kb/s"];
  return Number((bits / unit).toPrecision(2)) + " " + name;
};
const times = (ratio) => (ratio < 10 ? ratio.toFixed(1) : Math.round(ratio)) + "×";
const headers = () => ({"Content-Type": "application/json",
                        ...($("key").value ? {Authorization: "Bearer " + $("key").value} : {})});

// ---- Examples: facts and questions of the kind that the demo's fine-tunes learned ----
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
const measured = {};  // bytes a token, by format, of this page's own answers
let turns = [];  // earlier messages of the conversation
let stopping = null;  // AbortController of what is being answered

async function failure(reply) {
  const body = await reply.json().catch(() => null);
  return body?.error?.message ?? "HTTP status " + reply.status;
}

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
      new Option(name + (measured[name] ? ` · ${Math.round(measured[name])} B/token` : ""), name)));
  if (names.includes(chosen)) $("format").value = chosen;
}

// One way of answering the messages: what is asked, and what has come of it.
class Answer {
  constructor(name, own, messages) {
    this.name = name;
    const format = $("format").value, caches = $("caches").value;
    // A new salt finds nothing in any cache. An age keeps codes out of the decode server's own.
    const fresh = caches === "cold" || (caches === "warm" && own)
        ? {cache_salt: crypto.getRandomValues(new Uint32Array(4)).join("-")} : {};
    const aged = caches === "warm" && !own ? {max_staleness_ms: DAY_MS} : {};
    this.fresh = caches === "cold";
    this.request = {model: $("model").value, messages, temperature: 0, max_tokens: Number($("tokens").value), stream: true,
                    stream_options: {include_usage: true}, ...fresh,
                    aludel: own ? {fidelity: "exact"} : {fidelity: "fast", ...(format ? {format} : {}), ...aged}};
    this.text = "";
    this.state = "waits its turn";
  }

  async run(signal) {
    this.begin = performance.now();
    this.state = "waiting";
    try {
      const reply = await fetch("v1/chat/completions",
                                {method: "POST", headers: headers(), signal, body: JSON.stringify(this.request)});
      if (!reply.ok) throw new Error(await failure(reply));
      await this.read(reply.body.pipeThrough(new TextDecoderStream()).getReader());
      if (!this.report) throw new Error("The stream ended before its answer did.");
      this.state = "ok";
    } catch (error) {
      this.state = signal.aborted ? "stopped" : "failed";
      this.error = error.message;
    }
  }

  async read(reader) {
    let rest = "";
    for (;;) {
      const {value, done} = await reader.read();
      if (done) return;
      const events = (rest + value).split("\n\n");
      rest = events.pop();
      for (const event of events) this.take(event);
    }
  }

  take(event) {
    if (!event.startsWith("data: ") || event === "data: [DONE]") return;
    const data = JSON.parse(event.slice(6));
    if (data.error) throw new Error(data.error.message);
    const choice = data.choices[0];
    if (choice?.delta?.content) {
      this.seen ??= (performance.now() - this.begin) / 1e3;
      this.text += choice.delta.content;
      this.state = "answering";
    }
    this.reason = choice?.finish_reason ?? this.reason;
    this.report = data.aludel ?? this.report;
    this.usage = data.usage ?? this.usage;
  }

  // Seconds to the first token: the gateway's figure, or until it is here what this page sees.
  ttft() {
    if (this.report) return this.report.ttft;
    if (this.state === "failed" || this.begin === undefined) return 0;
    return this.seen ?? (this.state === "waiting" ? (performance.now() - this.begin) / 1e3 : 0);
  }

  handedOver() { return this.report?.plan === "remote"; }

  // What ran for it, in words.
  how() {
    const {plan, format, stages, handed_over_tokens, fallback_reason} = this.report;
    const cached = this.usage?.prompt_tokens_details?.cached_tokens ?? 0, prompt = this.usage?.prompt_tokens;
    if (plan === "fallback") return "Local prefill after a failed handoff: " + fallback_reason + ".";
    if (plan === "cached") {
      return `The decode server still had ${cached} of ${prompt} tokens from an earlier handoff (${format}): nothing was sent.`;
    }
    if (plan === "local") {
      return `Local prefill of ${prompt} tokens, ` + (cached ? `${cached} of them found in its prefix cache: warm.`
                                                            : "none of them cached: cold.");
    }
    const made = {warm: "Warm: the prefill server had them in its cache.",
                  cold: "Cold: the prefill server computed them for this answer."}[this.warmth()] ??
        `The decode server waited ${time(stages.transfer)} for them: the prefill server computed them now, or the link is slow.`;
    const again = this.fresh || this.warmth() === "warm" ? "" : " Ask again: now it has them.";
    return `${handed_over_tokens} of ${prompt} tokens handed over as ${format}. ${made}${again}`;
  }

  // "warm" or "cold", of codes that were handed over or of local prefill; "" where the report does not tell.
  warmth() {
    const {plan, stages} = this.report;
    if (plan !== "remote") return this.usage?.prompt_tokens_details?.cached_tokens ? "warm" : "cold";
    if (this.fresh || stages.prefill >= WARM) return "cold";
    return stages.encode + stages.transfer < WARM ? "warm" : "";
  }

  curl() {
    const body = JSON.stringify(this.request, null, 1).replaceAll("'", "'\\''");
    return `curl -N ${location.origin}/v1/chat/completions -H 'Content-Type: application/json'` +
        ($("key").value ? ` -H "Authorization: Bearer $KEY"` : "") + ` -d '${body}'`;
  }
}

// For each list of words, which of them are not in their longest common subsequence.
function differences(left, right) {
  const length = Array.from({length: left.length + 1}, () => new Uint16Array(right.length + 1));
  for (let i = left.length - 1; i >= 0; --i) {
    for (let j = right.length - 1; j >= 0; --j) {
      length[i][j] = left[i] === right[j] ? length[i + 1][j + 1] + 1 : Math.max(length[i + 1][j], length[i][j + 1]);
    }
  }
  const odd = [left.map(() => true), right.map(() => true)];
  for (let i = 0, j = 0; i < left.length && j < right.length;) {
    if (left[i] === right[j]) odd[0][i++] = odd[1][j++] = false;
    else if (length[i + 1][j] >= length[i][j + 1]) ++i;
    else ++j;
  }
  return odd;
}

const words = (text) => text.match(/\S+/g) ?? [];
const MOST_WORDS = 1000;  // that are compared: the table of differences() is their square

function bar(kind, label, seconds, longest, value, parts = []) {
  const filled = element("div"), line = element("div", kind);
  filled.style.width = 100 * seconds / (longest || 1) + "%";
  for (const [name, share] of parts) {
    const part = element("i");
    part.style.width = 100 * share + "%";
    part.style.background = `var(--${name})`;
    part.title = STAGES[name];
    filled.append(part);
  }
  line.append(element("span", "", label), element("b", "", value), element("div", "track", filled));
  line.lastChild.ariaHidden = "true";
  return line;
}

// A question, its answers, and what they show.
class Round {
  constructor(messages) {
    this.codes = new Answer("Over codes", false, messages);
    this.local = $("compare").checked ? new Answer("Local prefill", true, messages) : null;
    this.answers = [this.codes, ...(this.local ? [this.local] : [])];
    this.section = element("section");
    this.verdict = element("p", "verdict");
    this.verdict.role = "status";
    this.bars = element("div", "bars ttft");
    this.times = element("div", "panel", element("h2", "", "Time to the first token"), this.bars);
    this.texts = element("div", "pair");
    this.figures = element("div", "pair", this.times);
    this.section.append(this.verdict, this.texts, this.figures);
    $("rounds").prepend(this.section);
    this.texts.append(...this.answers.map((answer) => {
      answer.box = element("div", "text");
      answer.note = element("span");
      answer.card = element("article", "panel", element("h2", "", answer.name + " ", answer.note), answer.box);
      return answer.card;
    }));
    this.section.scrollIntoView({block: "nearest"});
  }

  async run(signal) {
    // One after the other: side by side they would slow each other down.
    let drawing = 0;
    const draw = () => { this.draw(); drawing = requestAnimationFrame(draw); };
    draw();
    for (const answer of this.answers) {
      if (signal.aborted) answer.state = "stopped";
      else await answer.run(signal);
    }
    cancelAnimationFrame(drawing);
    this.draw();
    this.finish();
  }

  draw() {
    const longest = Math.max(...this.answers.map((one) => one.ttft()));
    this.bars.replaceChildren(...this.answers.map((one) => {
      const parts = Object.keys(STAGES).map((name) => [name, (one.report?.stages[name] ?? 0) / (one.report?.ttft || 1)]);
      return bar("", one.name, one.ttft(), longest, one.ttft() ? time(one.ttft()) : one.state, parts.filter(([, share]) => share > 0));
    }));
    for (const one of this.answers) {
      const failed = one.state === "failed";
      one.box.className = failed ? "text error" : one.state === "waiting" || one.state === "answering" ? "text waiting" : "text";
      if (one.box.textContent !== (failed ? one.error : one.text)) one.box.textContent = failed ? one.error : one.text;
      one.note.textContent = one.state !== "ok" ? one.state : one.reason === "length" ? "cut at the limit" : "";
      one.card.dataset.done = one.state;
    }
  }

  finish() {
    this.verdict.textContent = this.judge();
    const done = this.answers.filter((one) => one.state === "ok");
    if (done.length) this.times.append(this.stages(done));
    for (const one of done) {
      one.card.append(element("p", "soft", one.how()));
      if (one.report.plan === "fallback") one.card.lastChild.className = "fallback";
    }
    if (this.codes.state === "ok" && this.codes.handedOver()) this.showBytes();
    this.showActions();
  }

  judge() {
    const {codes, local} = this;
    if (codes.state !== "ok") return codes.state === "stopped" ? "Stopped." : "No answer over codes.";
    const {plan, payload_bytes, raw_bytes} = codes.report;
    if (plan === "local" || plan === "fallback") return "No codes here: the decode server prefilled the prompt itself.";
    const ratio = raw_bytes / payload_bytes;
    const size = plan === "cached" ? "nothing sent"
        : ratio >= 1.05 ? (ratio < 2 ? Math.round(100 / ratio) + " %" : "1/" + Math.round(ratio)) + " of the raw cache's bytes"
        : ratio > .95 ? "as many bytes as the raw cache" : times(1 / ratio) + " the raw cache's bytes";
    if (local?.state !== "ok") return `First token after ${time(codes.report.ttft)}, ${size}.`;
    const sooner = local.report.ttft / codes.report.ttft;
    const over = plan === "cached" ? "over codes that it kept" : ["over", codes.warmth(), "codes"].filter(Boolean).join(" ");
    const first = sooner >= 1.05 ? `${times(sooner)} sooner ${over} than`
        : sooner <= .95 ? `${times(1 / sooner)} later ${over} than` : `${over} as soon as`;
    return `${this.compareWords()}, first token ${first} by ${local.warmth()} local prefill, ${size}.`;
  }

  // Marks what differs.
  compareWords() {
    const both = this.answers.map((one) => words(one.text));
    if (both[0].join(" ") === both[1].join(" ")) return "Same words";
    const odd = differences(...both.map((list) => list.slice(0, MOST_WORDS)));
    this.answers.forEach((one, k) => {
      let i = 0;  // of the next word
      const marked = (part) => part.trim() && odd[k][i++] ? element("mark", "", part) : part;
      one.box.replaceChildren(...one.text.split(/(\s+)/).map(marked));
    });
    const [mine, its] = odd.map((list) => list.filter(Boolean).length);
    return `Different words (${mine} of ${both[0].length} over codes, ${its} of ${both[1].length} by local prefill)`;
  }

  stages(done) {
    const head = element("tr", "", ...["stage", ...done.map((one) => one.name.toLowerCase())].map((name) => element("th", "", name)));
    const body = element("tbody"), line = (label, values, color) => {
      const mark = element("i");
      if (color) mark.style.background = `var(--${color})`;
      body.append(element("tr", "", element("th", "", mark, label), ...values.map((value) => element("td", "", value))));
    };
    for (const [name, label] of Object.entries(STAGES)) {
      const seconds = done.map((one) => one.report.stages[name] ?? 0);
      if (Math.max(...seconds) >= SHOWN) line(label, seconds.map((one) => one >= SHOWN ? time(one) : "–"), name);
    }
    line("first token", done.map((one) => time(one.report.ttft)));
    line("predicted", done.map((one) => one.report.predicted_ttft ? time(one.report.predicted_ttft) : "–"));
    line("seen here", done.map((one) => one.seen === undefined ? "–" : time(one.seen)));
    const where = ["localhost", "127.0.0.1", "[::1]"].includes(location.hostname)
        ? " This page came from localhost: servers that run there too share its cores, with no network between them." : "";
    return element("div", "", element("table", "", element("thead", "", head), body),
                   element("p", "soft", "One answer after the other, temperature 0." + where));
  }

  showBytes() {
    const {payload_bytes, raw_bytes, format, handed_over_tokens} = this.codes.report;
    measured[format] = payload_bytes / handed_over_tokens;
    showFormats();
    if (payload_bytes < raw_bytes) {
      $("story-bytes").textContent = `carry that cache: last time ${bytes(payload_bytes)} instead of ${bytes(raw_bytes)}.`;
    }
    const most = Math.max(payload_bytes, raw_bytes), sent = element("div", "bars bytes");
    sent.append(bar("", "Sent as " + format, payload_bytes, most, bytes(payload_bytes)),
                bar("raw", "Raw cache in bf16", raw_bytes, most, bytes(raw_bytes)));
    const panel = element("div", "panel", element("h2", "", "Bytes for the prompt’s cache"), sent);
    this.figures.append(element("div", "stack", panel, this.link()));
  }

  // What the measured times would be over a slower link. Nothing overlaps in this estimate, and the time that the
  // link of this answer took stays in; for raw there is nothing to encode, to reconstruct or to recompute.
  link() {
    const {ttft, stages, format, payload_bytes, raw_bytes} = this.codes.report, own = this.local?.report?.ttft;
    const smaller = raw_bytes > payload_bytes * 1.05;  // else there is no raw to compare with
    const rawBase = Math.max(0, ttft - stages.encode - stages.reconstruct - stages.recompute);
    const slider = element("input"), title = element("h2"), bars = element("div", "bars links"), limits = element("p", "soft");
    Object.assign(slider, {type: "range", min: 7, max: 11, step: .05, value: 9});  // powers of ten, bits a second
    slider.ariaLabel = "Link between prefill and decode server";
    const show = () => {
      const bits = 10 ** slider.value, codes = ttft + 8 * payload_bytes / bits, raw = rawBase + 8 * raw_bytes / bits;
      title.textContent = `On a link of ${rate(bits)}, estimated`;
      slider.ariaValueText = rate(bits);
      const rows = [["", format, codes], ...(smaller ? [["raw", "raw cache, at best", raw]] : []),
                    ...(own ? [["local", "local prefill", own]] : [])];
      const longest = Math.max(...rows.map((row) => row[2]));
      bars.replaceChildren(...rows.map(([kind, label, seconds]) => bar(kind, label, seconds, longest, time(seconds))));
    };
    const said = [];
    if (smaller) {
      const even = 8 * (raw_bytes - payload_bytes) / (ttft - rawBase);
      said.push(`${format} beats raw on ${ttft > rawBase ? "links slower than " + rate(even) : "every link"}.`);
    }
    if (own) {
      said.push(own > ttft ? `${format} beats local prefill on links faster than ${rate(8 * payload_bytes / (own - ttft))}.`
                           : `On no link does ${format} beat this local prefill.`);
    }
    limits.textContent = said.join(" ") + " The measured time and these bytes at this rate; round trips left out.";
    slider.addEventListener("input", show);
    show();
    return element("div", "panel", title, slider, bars, limits);
  }

  showActions() {
    const row = element("div", "row");
    if (this.codes.state === "ok") row.append(button("Follow up", () => {
      const asked = this.codes.request.messages.filter((one) => one.role !== "system");
      turns = [...asked, {role: "assistant", content: this.codes.text}];
      $("prompt").value = "";
      showTurns();
      $("prompt").focus();
    }));
    const command = element("pre", "", this.codes.curl());
    command.hidden = true;
    // Without a secure origin there is no clipboard: then the command can be selected.
    const copy = button("Copy as curl", () => {
      command.hidden = false;
      navigator.clipboard?.writeText(command.textContent).then(() => { copy.textContent = "Copied"; }, () => {});
    });
    row.append(copy);
    this.section.append(row, command);
  }
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
  $("ask").textContent = "Stop";
  const system = $("system").value.trim();
  const messages = [...(system ? [{role: "system", content: system}] : []), ...turns, {role: "user", content: $("prompt").value}];
  while ($("rounds").children.length > 9) $("rounds").lastChild.remove();
  await new Round(messages).run(stopping.signal);
  stopping = null;
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
