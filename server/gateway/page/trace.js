// ---- What the servers' trace of an answer shows ----
const REASONS = {
  fidelity: "An exact answer was asked for.", short_prompt: "The prompt is too short to be worth the trip.",
  no_target: "No prefill server is ready.", no_format: "No ready prefill server has a format that is allowed.",
  coded: "The best format that is allowed, from the least busy server.", forced: "This page asked for the format.",
  fastest: "It was expected to be soonest.", explore: "It was tried, as its figures were missing or old.",
  cached: "Earlier handoffs had left enough of the prompt.", arena: "There was no memory to receive a handoff.",
};
const LANES = {prefill: "prefill server computes", encode: "encodes", transfer: "link", reconstruct: "decode server reconstructs",
               first_decode: "own tokens, first token"};
const THIN = 20;  // rows, above which they are thin

// By layers: what their frames waited for, in seconds since the handoff began. [label, [lane, begin, end] ...]
function lanes({frames, first_token}) {
  const rows = new Map();
  let computed = 0, applied = 0;
  for (const frame of frames) {
    const last = frame.first_layer + frame.layers - 1;
    const label = frame.layers > 1 ? `layers ${frame.first_layer}–${last}` : `layer ${last}`;
    if (!rows.has(label)) rows.set(label, []);
    const row = rows.get(label), sent = Math.min(frame.sent ?? frame.received, frame.received);
    if (frame.encoded_from !== null) {
      const from = Math.min(frame.encoded_from, sent);
      row.push(["prefill", Math.min(computed, from), from], ["encode", from, sent]);
      computed = sent;
    }
    row.push(["transfer", sent, frame.received]);
    if (frame.applied === null) continue;
    row.push(["reconstruct", Math.max(frame.received, Math.min(applied, frame.applied)), frame.applied]);
    applied = frame.applied;
  }
  const drawn = [...rows];
  if (first_token !== null) drawn.push(["first token", [["first_decode", Math.min(applied, first_token), first_token]]]);
  return drawn;
}

function waterfall({trace, predicted_ttft}) {
  const rows = lanes(trace), end = Math.max(...rows.flatMap(([, spans]) => spans.map((span) => span[2])));
  const inside = predicted_ttft && predicted_ttft <= 1.25 * end, scale = inside ? Math.max(end, predicted_ttft) : end;
  const chart = element("div", rows.length > THIN ? "waterfall thin" : "waterfall");
  const place = (mark, begin, length) => {
    mark.style.left = 100 * begin / scale + "%";
    mark.style.width = 100 * length / scale + "%";
    return mark;
  };
  for (const [label, spans] of rows) {
    const track = element("div", "lane");
    for (const [lane, from, to] of spans) {
      const mark = place(element("i", lane), from, to - from);
      mark.title = `${label}: ${LANES[lane]}, ${time(from)} to ${time(to)}`;
      track.append(mark);
    }
    if (inside) track.append(place(element("i", "predicted"), predicted_ttft, 0));
    chart.append(element("span", "", label), track);
  }
  chart.role = "img";
  chart.ariaLabel = `${trace.frames.length} frames, from the handoff’s begin to the first token after ${time(end)}`;
  const legend = element("p", "legend soft", ...Object.entries(LANES).map(([lane, label]) =>
      element("span", "", element("i", lane), label)));
  if (inside) legend.append(element("span", "", element("i", "predicted"), "first token as predicted"));
  else if (predicted_ttft) legend.append(element("span", "", `first token predicted after ${time(predicted_ttft)}: not in sight`));
  const more = trace.frames_left_out ? ` ${trace.frames_left_out} later frames are left out.` : "";
  return element("div", "panel", element("h2", "", `The handoff, layer by layer: ${time(end)}`), chart, legend,
                 element("p", "soft", "Two servers’ clocks: the prefill server’s bars may be early by one call." + more));
}

// Predicted beside measured, of every way that the planner had.
function planPanel(codes, local) {
  const {trace, plan} = codes.report, chosen = plan === "local" || plan === "fallback" ? "" : codes.report.format;
  const measured = (option) => {
    const ran = [codes, local].find((one) => one?.report?.plan === option.plan && one.report.format === option.format);
    return ran ? time(ran.serverTtft()) : "–";
  };
  const known = trace.options.filter((option) => option.predicted_ttft !== null || option.format === chosen);
  const others = trace.options.filter((option) => !known.includes(option)).map((option) => option.format || "local prefill");
  const rows = known.map((option) => [
    [option.format === chosen ? element("b", "", (option.format || "local prefill") + " ✓") : option.format || "local prefill"],
    option.predicted_ttft === null ? "–" : time(option.predicted_ttft), measured(option),
    option.format === "" ? "0" : measuredBytes[option.format] ? each(measuredBytes[option.format]) : "–"]);
  return element("div", "panel plan", element("h2", "", "What the planner had to choose from"),
                 table(["cache by", "predicted", "measured", "B/token"], rows),
                 element("p", "soft", `✓ is what ran. ${REASONS[trace.reason] ?? ""} ` +
                     "Times to the first token, at the decode server." + (others.length ? ` Not yet measured there: ${others.join(", ")}.` : "")));
}
