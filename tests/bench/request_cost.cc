// What the worst of many requests costs: makes bodies from a seed, sends each through what a request takes
// (body, template, tokenizer, schema, masks), and reports CPU seconds and memory by stage. Exits with 1 where
// one breaks a bound that the servers rely on.
//   build/release/bin/request_cost --seed 1 --seconds 600 --max_bytes 4000000
#include <malloc.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <new>
#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "runtime/text/constrain/json_schema.h"
#include "runtime/text/constrain/token_automaton.h"
#include "server/gateway/openai/completion_request.h"
#include "server/gateway/openai/completions.h"
#include "server/gateway/openai/prompt.h"
#include "server/gateway/openai/served_models.h"
#include "tests/bench/request_bodies.h"
#include "tests/testing/cpu_clock.h"

ABSL_FLAG(uint64_t, seed, 1, "of the bodies");
ABSL_FLAG(double, seconds, 3, "how long to go on");
ABSL_FLAG(uint64_t, max_bytes, 1 << 20, "of a body, about");
ABSL_FLAG(std::string, model, "deploy/demo/chat", "directory of a model with a chat template");
ABSL_FLAG(int, worst, 12, "how many to list");
ABSL_FLAG(double, slack, 1, "by how much the bounds are widened, for builds that are slow on purpose");
ABSL_FLAG(std::string, save, "", "directory for the worst bodies");

namespace {

// Memory that operator new has given out, and the most since it was last asked.
std::atomic<int64_t> live_bytes = 0;
std::atomic<int64_t> peak_bytes = 0;

void* Count(void* memory) {
  if (memory == nullptr) std::abort();
  const int64_t live = live_bytes += static_cast<int64_t>(malloc_usable_size(memory));
  if (live > peak_bytes) peak_bytes = live;
  return memory;
}

void Uncount(void* memory) {
  if (memory != nullptr) live_bytes -= static_cast<int64_t>(malloc_usable_size(memory));
  std::free(memory);
}

}  // namespace

void* operator new(size_t size) { return Count(std::malloc(size)); }
void* operator new[](size_t size) { return Count(std::malloc(size)); }
void operator delete(void* memory) noexcept { Uncount(memory); }
void operator delete[](void* memory) noexcept { Uncount(memory); }
void operator delete(void* memory, size_t) noexcept { Uncount(memory); }
void operator delete[](void* memory, size_t) noexcept { Uncount(memory); }

namespace aludel {
namespace {

enum Stage { kParse, kRender, kTokenize, kCompile, kAutomaton, kMask, kStages };
constexpr const char* kStageNames[] = {"parse", "render", "tokenize", "compile", "automaton", "mask"};
constexpr int kMaskedTokens = 24;
constexpr int kFlaggedRatio = 100;  // to the median
// A body below this many bytes costs what any request does.
constexpr size_t kLeastBytes = 1024;

struct Cost {
  std::string kind;
  size_t bytes = 0;
  std::array<double, kStages> seconds{};
  double longest_mask = 0;
  int64_t peak_bytes = 0;
  std::string fault;

  double total() const {
    double sum = 0;
    for (const double one : seconds) sum += one;
    return sum;
  }
  double SecondsPerByte() const { return total() / static_cast<double>(std::max(bytes, kLeastBytes)); }
  double MemoryPerByte() const {
    return static_cast<double>(peak_bytes) / static_cast<double>(std::max(bytes, kLeastBytes));
  }
};

class Meter {
 public:
  Meter(const ServedModel* model, std::shared_ptr<const TokenTable> table)
      : model_(*model), table_(std::move(table)) {}

  Cost Measure(const RequestBody& body) const {
    Cost cost{.kind = body.kind, .bytes = body.text.size()};
    const int64_t before = live_bytes;
    peak_bytes = before;
    const auto error = Serve(body, &cost);
    if (error) cost.fault = error->message.substr(0, 100);
    cost.peak_bytes = peak_bytes - before;
    return cost;
  }

 private:
  // Adds the CPU time of one stage to a cost.
  class Timed {
   public:
    explicit Timed(double* seconds) : seconds_(seconds), start_(ThreadCpuSeconds()) {}
    ~Timed() { *seconds_ += ThreadCpuSeconds() - start_; }
    Timed(const Timed&) = delete;
    Timed& operator=(const Timed&) = delete;

   private:
    double* const seconds_;
    const double start_;
  };

  std::optional<ApiError> Serve(const RequestBody& body, Cost* cost) const {
    CompletionRequest request;
    {
      const Timed timed(&cost->seconds[kParse]);
      if (auto error = ParseChatRequest(body.text, &request)) return error;
    }
    std::string text, joint;
    {
      const Timed timed(&cost->seconds[kRender]);
      if (auto error = RenderChat(model_, request, &text, &joint)) return error;
    }
    std::vector<int32_t> ids;
    {
      const Timed timed(&cost->seconds[kTokenize]);
      if (auto error = TokenizeText(model_, "messages", text, /*add_special_tokens=*/false, joint, &ids))
        return error;
    }
    std::optional<v1::TextConstraint> wire = request.constraint;
    if (auto error = ConstrainToCall(request.tools, ToolDialect::kHermes, &wire)) return error;
    if (!wire) return std::nullopt;
    std::optional<Grammar> grammar;
    {
      const Timed timed(&cost->seconds[kCompile]);
      auto compiled = CompileConstraint({wire->prefix(), wire->json_schema(), wire->suffix()});
      if (!compiled.ok()) return FromStatus("schema", compiled.status());
      grammar = *std::move(compiled);
    }
    std::optional<TokenAutomaton> automaton;
    {
      const Timed timed(&cost->seconds[kAutomaton]);
      automaton.emplace(*std::move(grammar), table_);
    }
    if (const absl::Status start = automaton->CheckStart(); !start.ok()) return FromStatus("schema", start);
    return Walk(*automaton, cost);
  }

  std::optional<ApiError> Walk(TokenAutomaton& automaton, Cost* cost) const {
    TokenAutomaton::Cursor cursor(&automaton);
    for (int step = 0; step < kMaskedTokens && !cursor.complete(); ++step) {
      double seconds = 0;
      std::vector<int32_t> allowed;
      {
        const Timed timed(&seconds);
        const absl::Span<const uint64_t> mask = cursor.Mask();
        for (size_t id = 0; id < mask.size() * 64; ++id) {
          if ((mask[id / 64] >> (id % 64) & 1) != 0) allowed.push_back(static_cast<int32_t>(id));
        }
      }
      cost->seconds[kMask] += seconds;
      cost->longest_mask = std::max(cost->longest_mask, seconds);
      std::erase_if(allowed, [&](int32_t id) { return table_->bytes(id).empty(); });
      if (allowed.empty()) return std::nullopt;
      // Now a long token, now any.
      const int32_t id = step % 2 == 0 ? allowed[(step * 7919) % allowed.size()]
                                       : *std::max_element(allowed.begin(), allowed.end(), [&](int a, int b) {
                                           return table_->bytes(a).size() < table_->bytes(b).size();
                                         });
      const Timed timed(&cost->seconds[kMask]);
      cursor.Accept(id);
    }
    return std::nullopt;
  }

  const ServedModel& model_;
  const std::shared_ptr<const TokenTable> table_;
};

// The bounds that servers rely on; empty where all hold.
std::string Broken(const Cost& cost, double slack) {
  const double handler = cost.seconds[kParse] + cost.seconds[kRender] + cost.seconds[kTokenize];
  // On a thread that all requests share.
  if (cost.bytes <= Completions::kLightBodyBytes && handler > slack * 0.05) {
    return absl::StrFormat("holds a handler thread for %.3f s", handler);
  }
  const double compile = cost.seconds[kCompile] + cost.seconds[kAutomaton];
  if (compile > slack * 0.5) return absl::StrFormat("compiles for %.3f s", compile);
  // On the engine's thread.
  if (cost.longest_mask > slack * 0.2) return absl::StrFormat("has a mask of %.3f s", cost.longest_mask);
  if (cost.peak_bytes > (int64_t{256} << 20) + 200 * static_cast<int64_t>(cost.bytes)) {
    return absl::StrFormat("takes %d MB", cost.peak_bytes >> 20);
  }
  return "";
}

void Print(const char* mark, const Cost& cost) {
  std::printf("%s%-34s %9zu B %8.4f s %7.2f us/B %7.1f MB %6.0f B/B ", mark, cost.kind.c_str(), cost.bytes,
              cost.total(), 1e6 * cost.SecondsPerByte(), static_cast<double>(cost.peak_bytes) / (1 << 20),
              cost.MemoryPerByte());
  for (int stage = 0; stage < kStages; ++stage) {
    if (cost.seconds[stage] > 0.001) std::printf(" %s %.4f", kStageNames[stage], cost.seconds[stage]);
  }
  std::printf("%s%s\n", cost.fault.empty() ? "" : "  | ", cost.fault.c_str());
}

double Median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + values.size() / 2, values.end());
  return values[values.size() / 2];
}

void Save(const std::string& directory, const Cost& cost, const std::string& text, int number) {
  if (directory.empty()) return;
  std::string name = cost.kind;
  std::replace_if(
      name.begin(), name.end(), [](char c) { return c == ' ' || c == ':'; }, '_');
  const std::string path = absl::StrCat(directory, "/", number, "_", name, ".json");
  std::unique_ptr<FILE, int (*)(FILE*)> file(std::fopen(path.c_str(), "wb"), &std::fclose);
  if (file != nullptr) std::fwrite(text.data(), 1, text.size(), file.get());
}

int Run() {
  auto models = ServedModels::Load({{.name = "chat", .directory = absl::GetFlag(FLAGS_model)}});
  if (!models.ok()) {
    std::fprintf(stderr, "%s\n", models.status().ToString().c_str());
    return 2;
  }
  const ServedModel* model = models->Find("chat");
  const Meter meter(model, std::make_shared<TokenTable>(*model->tokenizer, std::vector<int>{},
                                                        model->tokenizer->vocab_size()));
  RequestBodies bodies(absl::GetFlag(FLAGS_seed), absl::GetFlag(FLAGS_max_bytes));
  const absl::Time end = absl::Now() + absl::Seconds(absl::GetFlag(FLAGS_seconds));
  std::vector<Cost> costs;
  int broken = 0;
  while (absl::Now() < end) {
    const RequestBody body = bodies.Next();
    costs.push_back(meter.Measure(body));
    const std::string bound = Broken(costs.back(), absl::GetFlag(FLAGS_slack));
    if (bound.empty()) continue;
    ++broken;
    Print("BROKEN  ", costs.back());
    std::printf("        body %zu of seed %lu %s\n", costs.size() - 1, absl::GetFlag(FLAGS_seed),
                bound.c_str());
    Save(absl::GetFlag(FLAGS_save), costs.back(), body.text, broken);
  }
  std::vector<double> times, memory;
  for (const Cost& cost : costs) {
    times.push_back(cost.SecondsPerByte());
    memory.push_back(cost.MemoryPerByte());
  }
  const double median = Median(times);
  const double median_memory = Median(memory);
  std::printf("%zu bodies; medians %.3f us and %.1f bytes of memory a byte\n", costs.size(), 1e6 * median,
              median_memory);
  std::sort(costs.begin(), costs.end(), [](const Cost& a, const Cost& b) { return a.total() > b.total(); });
  std::printf("the most CPU time (* %d times the median a byte):\n", kFlaggedRatio);
  const auto listed = [&](double ratio) { return ratio > kFlaggedRatio ? "* " : "  "; };
  std::map<std::string, int> seen;
  int left = absl::GetFlag(FLAGS_worst);
  for (const Cost& cost : costs) {
    if (left == 0) break;
    if (seen[cost.kind]++ > 0) continue;
    --left;
    Print(listed(cost.SecondsPerByte() / median), cost);
  }
  std::sort(costs.begin(), costs.end(),
            [](const Cost& a, const Cost& b) { return a.peak_bytes > b.peak_bytes; });
  std::printf("the most memory (* %d times the median a byte):\n", kFlaggedRatio);
  seen.clear();
  left = absl::GetFlag(FLAGS_worst);
  for (const Cost& cost : costs) {
    if (left == 0) break;
    if (seen[cost.kind]++ > 0) continue;
    --left;
    Print(listed(cost.MemoryPerByte() / median_memory), cost);
  }
  std::printf("%d bodies broke a bound\n", broken);
  return broken == 0 ? 0 : 1;
}

}  // namespace
}  // namespace aludel

int main(int argc, char** argv) {
  absl::ParseCommandLine(argc, argv);
  return aludel::Run();
}
