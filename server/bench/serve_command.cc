#include <algorithm>
#include <csignal>
#include <cstdio>
#include <fstream>
#include <map>
#include <memory>
#include <random>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "runtime/evaluate/questions.h"
#include "runtime/status_macros.h"
#include "runtime/text/tokenizer/tokenizer.h"
#include "runtime/tool/flag_set.h"
#include "runtime/tool/progress.h"
#include "server/bench/commands.h"
#include "server/bench/load_client.h"
#include "server/bench/load_report.h"
#include "server/bench/request_trace.h"

namespace aludel {
namespace {

using nlohmann::ordered_json;

constexpr char kUsage[] =
    R"(aludel-bench serve loads an OpenAI-compatible endpoint (this gateway or another's) and measures what its users
would see: time to first token, time between tokens, whole requests, and goodput at an objective.

  aludel-bench serve --url http://127.0.0.1:8080 --model chat --qa deploy/demo/questions.jsonl --rate 5 --requests 200
  aludel-bench serve --url http://127.0.0.1:8080 --model chat --concurrency 16 --requests 200
  aludel-bench serve --url http://127.0.0.1:8080 --model chat --trace trace.jsonl --slo-ttft-ms 500 --html load.html

Requests arrive as a Poisson process of --rate, or as a trace says: JSON lines with "timestamp" (ms), and "prompt" or
"input_length" (words are made up), and "output_length" or "max_tokens". With "hash_ids", one for each 512 tokens,
prompts begin alike where their ids do, and requests that share a timestamp are spread until the next one;
--block-tokens 64 makes each block, and all lengths with it, an eighth as long, for models of a short context. They
are sent at their time whether or not earlier ones have ended; with --concurrency N requests are under way instead,
and one is sent when another ends. A trace's lengths are tokens: with --tokenizer prompts have so many (beside what
the chat template adds; words otherwise), with --ignore-eos answers, too. The report says how many there were.

Times between tokens are those between reads that bring text: pieces that one read brings share the time since the read
before, so that tokens which the server or the network sends together do not pass for fast ones. The report counts them.
Goodput counts whole answers within the objective, of all requests, from the first one's arrival to the last one's end; N
prompts at once are --concurrency N --requests N, and the same C at a time --concurrency C.)";

constexpr int64_t kPoissonRequests = 100;

struct Flags {
  std::string url = "http://127.0.0.1:8080";
  std::string model;
  std::string qa;
  std::string trace;
  std::string tokenizer;
  std::string api_key;
  std::string fidelity;
  std::string format;
  std::string json;
  std::string html;
  double rate = 1;
  double speed = 1;
  int64_t concurrency = 0;  // 0: an open loop
  int64_t requests = 0;     // 0: 100, or all of a trace
  int64_t max_tokens = 32;
  int64_t seed = 1;
  int64_t block_tokens = kTraceBlock;
  int64_t deadline_ms = 0;
  double timeout = 120;
  int64_t connections = 1024;
  bool insecure = false;
  bool ignore_eos = false;
  LoadObjective objective;
};

ordered_json UserMessage(const std::string& prompt) {
  return ordered_json::array({{{"role", "user"}, {"content", prompt}}});
}

std::string Body(const Flags& flags, ordered_json messages, int64_t max_tokens) {
  ordered_json body = {
      {"model", flags.model}, {"stream", true},           {"stream_options", {{"include_usage", true}}},
      {"temperature", 0},     {"max_tokens", max_tokens}, {"messages", std::move(messages)}};
  // Ours alone: another's endpoint is sent nothing that it might refuse.
  if (!flags.fidelity.empty()) body["aludel"]["fidelity"] = flags.fidelity;
  if (!flags.format.empty()) body["aludel"]["format"] = flags.format;
  if (flags.ignore_eos) body["ignore_eos"] = true;
  if (flags.deadline_ms > 0) body["aludel"]["timeout_ms"] = flags.deadline_ms;
  return body.dump(-1, ' ', false, ordered_json::error_handler_t::replace);
}

// Words without meaning, different for each seed, so that no cache has seen them.
std::string MadeUpWords(int64_t words, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::string text;
  for (int64_t i = 0; i < words; ++i) {
    for (int letters = 2 + static_cast<int>(random() % 6); letters > 0; --letters) {
      text += static_cast<char>('a' + random() % 26);
    }
    text += ' ';
  }
  return text;
}

// The same, as long as the tokenizer needs `tokens` ids for; without one, words.
absl::StatusOr<std::string> MadeUpPrompt(const Tokenizer* tokenizer, int64_t tokens, uint64_t seed) {
  std::string text = MadeUpWords(tokens, seed);
  if (tokenizer == nullptr) return text;
  ALUDEL_ASSIGN_OR_RETURN(const std::vector<int32_t> ids, tokenizer->Encode(text, false));
  return tokenizer->Decode(absl::MakeConstSpan(ids).subspan(0, tokens), false);
}

absl::StatusOr<std::vector<LoadRequest>> PoissonRequests(const Flags& flags) {
  if (flags.rate <= 0) return absl::InvalidArgumentError("--rate wants a positive number");
  std::vector<Question> questions;
  if (!flags.qa.empty()) {
    ALUDEL_ASSIGN_OR_RETURN(questions, LoadQuestions(flags.qa, 0));
    for (const Question& question : questions) {
      if (question.ids.empty()) continue;
      return absl::InvalidArgumentError(absl::StrCat(question.origin, ": ids cannot be sent as a chat"));
    }
  }
  std::mt19937_64 random(static_cast<uint64_t>(flags.seed));
  std::exponential_distribution<double> gap(flags.rate);
  std::vector<LoadRequest> requests;
  double arrival = 0;
  constexpr int64_t kWords = 200;
  const int64_t count = flags.requests > 0 ? flags.requests : kPoissonRequests;
  for (int64_t i = 0; i < count; ++i) {
    const size_t at = static_cast<size_t>(i) % std::max<size_t>(1, questions.size());
    ordered_json messages = questions.empty()                  ? UserMessage(MadeUpWords(kWords, random()))
                            : questions[at].messages.is_null() ? UserMessage(questions[at].Message())
                                                               : questions[at].messages;
    requests.push_back({arrival, Body(flags, std::move(messages), flags.max_tokens), flags.max_tokens});
    arrival += gap(random);
  }
  return requests;
}

// Prompts that begin alike where their ids do: each id stands for the same made-up text wherever it comes.
class BlockTexts {
 public:
  BlockTexts(const Tokenizer* tokenizer, int64_t block_tokens, int64_t seed)
      : tokenizer_(tokenizer), block_tokens_(block_tokens), seed_(seed) {}

  absl::StatusOr<std::string> Prompt(const TraceRequest& request) {
    std::string prompt;
    int64_t left = Scaled(request.input_tokens);
    for (const int64_t id : request.blocks) {
      const int64_t tokens = std::min(left, block_tokens_);
      if (tokens <= 0) break;
      const auto seed = static_cast<uint64_t>(seed_) * 1'000'000'007 + static_cast<uint64_t>(id);
      // The last block of a prompt may be shorter; it is no other's then.
      std::string& whole = texts_[id];
      if (whole.empty()) {
        ALUDEL_ASSIGN_OR_RETURN(whole, MadeUpPrompt(tokenizer_, block_tokens_, seed));
      }
      if (tokens == block_tokens_) {
        prompt += whole;
      } else {
        ALUDEL_ASSIGN_OR_RETURN(const std::string part, MadeUpPrompt(tokenizer_, tokens, seed));
        prompt += part;
      }
      left -= tokens;
    }
    return prompt;
  }
  int64_t Scaled(int64_t tokens) const {
    return tokens == 0 ? 0 : std::max<int64_t>(1, tokens * block_tokens_ / kTraceBlock);
  }

 private:
  const Tokenizer* const tokenizer_;
  const int64_t block_tokens_;
  const int64_t seed_;
  std::map<int64_t, std::string> texts_;
};

absl::StatusOr<std::vector<LoadRequest>> TraceRequests(const Flags& flags) {
  if (flags.speed <= 0) return absl::InvalidArgumentError("--speed wants a positive number");
  if (flags.block_tokens < 1) return absl::InvalidArgumentError("--block-tokens wants at least 1");
  ALUDEL_ASSIGN_OR_RETURN(std::vector<TraceRequest> trace, LoadTrace(flags.trace));
  const bool blocks = std::any_of(trace.begin(), trace.end(),
                                  [](const TraceRequest& request) { return !request.blocks.empty(); });
  if (blocks) SpreadArrivals(static_cast<uint64_t>(flags.seed), &trace);
  if (flags.requests > 0 && trace.size() > static_cast<size_t>(flags.requests)) trace.resize(flags.requests);
  std::unique_ptr<Tokenizer> tokenizer;
  if (!flags.tokenizer.empty()) {
    ALUDEL_ASSIGN_OR_RETURN(tokenizer, Tokenizer::Load(flags.tokenizer));
  }
  BlockTexts texts(tokenizer.get(), flags.block_tokens, flags.seed);
  std::vector<LoadRequest> requests;
  for (const TraceRequest& request : trace) {
    std::string prompt = request.prompt;
    int64_t tokens = request.output_tokens > 0 ? request.output_tokens : flags.max_tokens;
    if (!request.blocks.empty() && prompt.empty()) {
      ALUDEL_ASSIGN_OR_RETURN(prompt, texts.Prompt(request));
      tokens = request.output_tokens > 0 ? texts.Scaled(tokens) : tokens;
    } else if (prompt.empty()) {
      const auto seed = static_cast<uint64_t>(flags.seed + request.line);
      ALUDEL_ASSIGN_OR_RETURN(prompt, MadeUpPrompt(tokenizer.get(), request.input_tokens, seed));
    }
    requests.push_back({(request.arrival - trace.front().arrival) / flags.speed,
                        Body(flags, UserMessage(prompt), tokens), tokens});
  }
  return requests;
}

absl::Status Write(const std::string& path, const std::string& text) {
  std::ofstream out(path);
  out << text;
  out.close();
  return out.good() ? absl::OkStatus() : absl::UnavailableError(absl::StrCat(path, ": cannot be written"));
}

absl::Status Load(const Flags& flags) {
  ALUDEL_ASSIGN_OR_RETURN(const std::vector<LoadRequest> requests,
                          flags.trace.empty() ? PoissonRequests(flags) : TraceRequests(flags));
  LoadTarget target{.url = absl::StrCat(absl::StripSuffix(flags.url, "/"), "/v1/chat/completions"),
                    .api_key = flags.api_key,
                    .insecure = flags.insecure,
                    .timeout_seconds = flags.timeout,
                    .max_connections = std::max(flags.connections, flags.concurrency),
                    .concurrency = flags.concurrency};
  StopOnSignals();
  std::signal(SIGPIPE, SIG_IGN);  // OpenSSL writes to closed sockets
  ProgressBar bar;
  const auto total = static_cast<int64_t>(requests.size());
  int64_t shown = -1;
  ALUDEL_ASSIGN_OR_RETURN(const std::vector<LoadResult> results, RunLoad(target, requests, [&](int64_t done) {
                            if (done != shown) bar.Update("requests", shown = done, total);
                            return !StopAsked();
                          }));
  bar.Break();
  const ordered_json summary = SummarizeLoad(results, flags.objective);
  std::fputs(DescribeLoad(summary).c_str(), stdout);
  // Errors are cut, and may be of any bytes.
  const std::string json = summary.dump(2, ' ', false, ordered_json::error_handler_t::replace) + "\n";
  if (!flags.json.empty()) ALUDEL_RETURN_IF_ERROR(Write(flags.json, json));
  if (!flags.html.empty()) {
    const std::string load = flags.concurrency > 0 ? absl::StrCat(flags.concurrency, " requests at once")
                             : flags.trace.empty() ? absl::StrCat(flags.rate, " requests/s")
                                                   : flags.trace;
    ALUDEL_RETURN_IF_ERROR(
        Write(flags.html, LoadHtml(summary, results, absl::StrCat(flags.model, " under ", load))));
  }
  if (StopAsked()) return absl::CancelledError("stopped; what had ended is reported above");
  if (summary["completed"] == 0) return absl::UnavailableError("no request was answered");
  return absl::OkStatus();
}

}  // namespace

absl::Status ServeCommand(int argc, char** argv) {
  Flags values;
  FlagSet flags(kUsage);
  flags.Add("url", "URL", &values.url, "server, without the path");
  flags.Add("model", "NAME", &values.model, "model to ask for");
  flags.Add("rate", "N", &values.rate, "requests per second, arriving as a Poisson process");
  flags.Add("requests", "N", &values.requests, "requests to send; 0: 100, or all of a trace");
  flags.Add("qa", "FILE", &values.qa,
            "JSON lines with context and question as prompts (default: made-up words)");
  flags.Add("trace", "FILE", &values.trace, "arrivals from a trace instead of --rate");
  flags.Add("concurrency", "N", &values.concurrency, "requests under way, instead of arrivals; 0: arrivals");
  flags.Add("speed", "N", &values.speed, "play the trace N times as fast");
  flags.Add("block-tokens", "N", &values.block_tokens, "that a block of a trace's hash_ids becomes");
  flags.Add("tokenizer", "DIR", &values.tokenizer, "model whose tokens a trace's input_length counts");
  flags.Add("ignore-eos", &values.ignore_eos, "answers as long as they may be (Aludel, vLLM)");
  flags.Add("max-tokens", "N", &values.max_tokens, "tokens of an answer, at most");
  flags.Add("api-key", "KEY", &values.api_key, "sent as a bearer token");
  flags.Add("fidelity", "NAME", &values.fidelity, "Aludel's exact, high, balanced or fast");
  flags.Add("format", "NAME", &values.format, "Aludel's wire format to force");
  flags.Add("deadline-ms", "N", &values.deadline_ms, "Aludel's deadline of a request; 0: the server's");
  flags.Add("slo-ttft-ms", "N", &values.objective.ttft_ms, "a good request's time to first token; 0: any");
  flags.Add("slo-itl-ms", "N", &values.objective.inter_token_ms, "and its mean time between tokens; 0: any");
  flags.Add("slo-e2e-ms", "N", &values.objective.e2e_ms, "and its whole time; 0: any");
  flags.Add("json", "FILE", &values.json, "write the figures");
  flags.Add("html", "FILE", &values.html, "write a page with a plot");
  flags.Add("seed", "N", &values.seed, "same seed, same arrivals and prompts");
  flags.Add("timeout", "SECONDS", &values.timeout, "of one request");
  flags.Add("connections", "N", &values.connections, "open at once; more requests wait");
  flags.Add("insecure", &values.insecure, "accept any certificate");
  ALUDEL_RETURN_IF_ERROR(flags.Parse(argc, argv));
  if (values.requests < 0) return absl::InvalidArgumentError("--requests is negative");
  if (values.concurrency < 0) return absl::InvalidArgumentError("--concurrency is negative");
  if (values.connections < 1) return absl::InvalidArgumentError("--connections wants at least 1");
  if (flags.help_asked()) {
    std::fputs(flags.Help().c_str(), stdout);
    return absl::OkStatus();
  }
  if (values.model.empty()) return absl::InvalidArgumentError("--model is needed (see --help)");
  return Load(values);
}

}  // namespace aludel
