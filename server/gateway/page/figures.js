// ---- Figures of a round ----
const STAGES = {gateway: "gateway", queue: "queue", prefill: "prefill", encode: "encode", transfer: "waiting for frames",
                reconstruct: "reconstruct", recompute: "recomputed tokens", first_decode: "first decode", held: "held back"};
const SHOWN = 5e-6;  // Seconds; shorter stages are left out.

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

// Rows of cells; the first of each names it.
function table(head, rows) {
  return element("table", "", element("thead", "", element("tr", "", ...head.map((name) => element("th", "", name)))),
                 element("tbody", "", ...rows.map(([name, ...values]) =>
                     element("tr", "", element("th", "", ...[name].flat()), ...values.map((value) => element("td", "", value))))));
}

function swatch(color) {
  const mark = element("i");
  mark.style.background = `var(--${color})`;
  return mark;
}

const folded = (label, ...content) => element("details", "", element("summary", "", label), ...content);

function stageTable(done) {
  const rows = [];
  for (const [name, label] of Object.entries(STAGES)) {
    const seconds = done.map((one) => one.report.stages[name] ?? 0);
    if (Math.max(...seconds) < SHOWN) continue;
    rows.push([[swatch(name), label], ...seconds.map((one) => one >= SHOWN ? time(one) : "–")]);
  }
  rows.push(["first token", ...done.map((one) => time(one.report.ttft))]);
  rows.push(["seen here", ...done.map((one) => one.seen === undefined ? "–" : time(one.seen))]);
  const where = ["localhost", "127.0.0.1", "[::1]"].includes(location.hostname)
      ? " This page came from localhost: servers that run there too share its cores, with no network between them." : "";
  return folded("Stage by stage", table(["stage", ...done.map((one) => one.name.toLowerCase())], rows),
                element("p", "soft", "One answer after the other, temperature 0." + where));
}

function bytesPanel({payload_bytes, raw_bytes, format}) {
  const most = Math.max(payload_bytes, raw_bytes), sent = element("div", "bars bytes");
  sent.append(bar("", "Sent as " + format, payload_bytes, most, bytes(payload_bytes)),
              bar("raw", "Raw cache in bf16", raw_bytes, most, bytes(raw_bytes)));
  return element("div", "panel", element("h2", "", "Bytes for the prompt’s cache"), sent);
}

// What the measured times would be over a slower link. Nothing overlaps in this estimate, and the time that the
// link of this answer took stays in; for raw there is nothing to encode, to reconstruct or to recompute.
function linkPanel({ttft, stages, format, payload_bytes, raw_bytes}, own) {
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
  const ends = element("p", "ends", element("span", "", "10 Mb/s"), element("span", "", "100 Gb/s"));
  return element("div", "panel", title, slider, ends, bars, limits);
}
