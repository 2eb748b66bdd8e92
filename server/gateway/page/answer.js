// ---- One way of answering ----
const WARM = 1e-3;  // Seconds at the prefill server and on the wire, below which it must have had the codes.
const DAY_MS = 86400000;
const headers = () => ({"Content-Type": "application/json",
                        ...($("key").value ? {Authorization: "Bearer " + $("key").value} : {})});

async function failure(reply) {
  const body = await reply.json().catch(() => null);
  return body?.error?.message ?? "HTTP status " + reply.status;
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

  // With the figures that this page draws.
  traced() { return {...this.request, aludel: {...this.request.aludel, trace: true}}; }

  async run(signal) {
    this.begin = performance.now();
    this.state = "waiting";
    try {
      const reply = await fetch("v1/chat/completions",
                                {method: "POST", headers: headers(), signal, body: JSON.stringify(this.traced())});
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

  // The same as the planner means it: without the gateway's part and what was held back.
  serverTtft() { return this.report.ttft - (this.report.stages.gateway ?? 0) - (this.report.stages.held ?? 0); }

  handedOver() { return this.report?.plan === "remote"; }

  // What ran for it, in words.
  how() {
    const {plan, format, stages, handed_over_tokens, fallback_reason} = this.report;
    const cached = this.usage?.prompt_tokens_details?.cached_tokens ?? 0, prompt = this.usage?.prompt_tokens;
    if (plan === "fallback") return "Local prefill after a failed handoff: " + fallback_reason + ".";
    if (plan === "cached") {
      return `The decode server still had ${cached} of ${prompt} tokens from an earlier handoff (${format}): nothing was sent.`;
    }
    if (plan === "stored") {
      return `${handed_over_tokens} of ${prompt} tokens were in the decode server's store of received codes (${format}): nothing was sent.`;
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
