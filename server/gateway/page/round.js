// ---- A question, its answers, and what they show ----
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
    this.left = element("div", "stack", this.times);
    this.figures = element("div", "pair", this.left);
    const lines = messages.at(-1).content.trim().split("\n");
    this.section.append(element("p", "question", (lines.length > 1 ? "… " : "") + lines.at(-1)),
                        this.verdict, this.texts, this.figures);
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
      return bar("", one.name, one.ttft(), longest, one.ttft() ? time(one.ttft()) : one.state,
                 parts.filter(([, share]) => share > 0));
    }));
    for (const one of this.answers) {
      const failed = one.state === "failed", text = failed ? one.error : one.text;
      one.box.className = failed ? "text error" : one.state === "waiting" || one.state === "answering" ? "text waiting" : "text";
      if (one.drawn !== text) {
        one.drawn = text;
        one.box.replaceChildren(...(failed ? [text] : markdown(text)));
      }
      one.note.textContent = one.state !== "ok" ? one.state : one.reason === "length" ? "cut at the limit" : "";
      one.card.dataset.done = one.state;
    }
  }

  finish() {
    this.verdict.textContent = this.judge();
    const done = this.answers.filter((one) => one.state === "ok");
    if (done.length) this.times.append(stageTable(done));
    for (const one of done) {
      one.card.append(element("p", "soft", one.how()));
      if (one.report.plan === "fallback") one.card.lastChild.className = "fallback";
    }
    if (this.codes.state === "ok") this.showFigures();
    this.showActions();
  }

  judge() {
    const {codes, local} = this;
    if (codes.state !== "ok") return codes.state === "stopped" ? "Stopped." : "No answer over codes.";
    const {plan, payload_bytes, raw_bytes} = codes.report;
    if (plan === "local" || plan === "fallback") return "No codes here: the decode server prefilled the prompt itself.";
    const ratio = raw_bytes / payload_bytes;
    const size = plan === "cached" || plan === "stored" ? "nothing sent"
        : ratio >= 1.05 ? (ratio < 2 ? Math.round(100 / ratio) + " %" : "1/" + Math.round(ratio)) + " of the raw cache's bytes"
        : ratio > .95 ? "as many bytes as the raw cache" : times(1 / ratio) + " the raw cache's bytes";
    if (local?.state !== "ok") return `First token after ${time(codes.report.ttft)}, ${size}.`;
    const sooner = local.report.ttft / codes.report.ttft;
    const over = plan === "cached" || plan === "stored" ? "over codes that it kept" : ["over", codes.warmth(), "codes"].filter(Boolean).join(" ");
    const first = sooner >= 1.05 ? `${times(sooner)} sooner ${over} than`
        : sooner <= .95 ? `${times(1 / sooner)} later ${over} than` : `${over} as soon as`;
    return `${this.compareWords()}, first token ${first} by ${local.warmth()} local prefill, ${size}.`;
  }

  // Marks what differs, in the texts as they were written.
  compareWords() {
    const both = this.answers.map((one) => words(one.text));
    if (both[0].join(" ") === both[1].join(" ")) return "Same words";
    const odd = differences(...both.map((list) => list.slice(0, MOST_WORDS)));
    this.answers.forEach((one, k) => {
      let i = 0;  // of the next word
      const marked = (part) => part.trim() && odd[k][i++] ? element("mark", "", part) : part;
      one.box.replaceChildren(element("p", "", ...one.text.split(/(\s+)/).map(marked)));
    });
    const [mine, its] = odd.map((list) => list.filter(Boolean).length);
    return `Different words (${mine} of ${both[0].length} over codes, ${its} of ${both[1].length} by local prefill)`;
  }

  showFigures() {
    const report = this.codes.report;
    learnBytes(report);
    if (this.codes.handedOver()) {
      this.figures.append(element("div", "stack", bytesPanel(report), linkPanel(report, this.local?.report?.ttft)));
    }
    if (!report.trace) return;
    if (report.trace.frames.length) this.left.append(waterfall(report));
    this.left.append(planPanel(this.codes, this.local));
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
