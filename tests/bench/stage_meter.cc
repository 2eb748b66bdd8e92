#include "tests/bench/stage_meter.h"

#include <algorithm>
#include <array>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "runtime/text/constrain/text_constraint.h"
#include "runtime/text/constrain/token_automaton.h"
#include "server/gateway/openai/completion_request.h"
#include "server/gateway/openai/completions.h"
#include "server/gateway/openai/prompt.h"
#include "tests/bench/counted_memory.h"
#include "tests/testing/cpu_clock.h"

namespace aludel {
namespace {

enum Stage { kParse, kRender, kTokenize, kCompile, kAutomaton, kMask, kStages };
constexpr const char* kStageNames[] = {"parse", "render", "tokenize", "compile", "automaton", "mask"};
constexpr int kMaskedTokens = 24;

struct Stages {
  std::array<double, kStages> seconds{};
  double longest_mask = 0;
};

// The bounds that servers rely on; empty where all hold.
std::string Broken(const RequestCost& cost, const Stages& stages, double slack) {
  const double handler = stages.seconds[kParse] + stages.seconds[kRender] + stages.seconds[kTokenize];
  // On a thread that all requests share.
  if (cost.bytes <= Completions::kLightBodyBytes && handler > slack * 0.05) {
    return absl::StrFormat("holds a handler thread for %.3f s", handler);
  }
  const double compile = stages.seconds[kCompile] + stages.seconds[kAutomaton];
  if (compile > slack * 0.5) return absl::StrFormat("compiles for %.3f s", compile);
  // On the engine's thread.
  if (stages.longest_mask > slack * 0.2) return absl::StrFormat("has a mask of %.3f s", stages.longest_mask);
  if (cost.peak_bytes > (int64_t{256} << 20) + 200 * static_cast<int64_t>(cost.bytes)) {
    return absl::StrFormat("takes %d MB", cost.peak_bytes >> 20);
  }
  return "";
}

class Meter : public StageMeter {
 public:
  Meter(const ServedModel* model, std::shared_ptr<const TokenTable> table)
      : model_(*model), table_(std::move(table)) {}

  RequestCost Measure(const RequestBody& body, double slack) const override {
    Stages stages;
    const int64_t before = LiveBytes();
    RestartPeak();
    const auto error = Serve(body, &stages);
    RequestCost cost{.kind = body.kind, .bytes = body.text.size(), .peak_bytes = PeakBytes() - before};
    for (int stage = 0; stage < kStages; ++stage) {
      cost.seconds += stages.seconds[stage];
      if (stages.seconds[stage] < 0.001) continue;
      absl::StrAppendFormat(&cost.detail, "%s %.4f ", kStageNames[stage], stages.seconds[stage]);
    }
    if (error) absl::StrAppend(&cost.detail, "| ", error->message.substr(0, 100));
    cost.broken = Broken(cost, stages, slack);
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

  std::optional<ApiError> Serve(const RequestBody& body, Stages* stages) const {
    CompletionRequest request;
    {
      const Timed timed(&stages->seconds[kParse]);
      if (auto error = ParseChatRequest(body.text, &request)) return error;
    }
    std::string text, joint;
    {
      const Timed timed(&stages->seconds[kRender]);
      if (auto error = RenderChat(model_, request, &text, &joint)) return error;
    }
    std::vector<int32_t> ids;
    {
      const Timed timed(&stages->seconds[kTokenize]);
      if (auto error = TokenizeText(model_, "messages", text, /*add_special_tokens=*/false, joint, &ids))
        return error;
    }
    std::optional<v1::TextConstraint> wire = request.constraint;
    if (auto error = ConstrainToCall(request.tools, ToolDialect::kHermes, &wire)) return error;
    if (!wire) return std::nullopt;
    std::optional<Grammar> grammar;
    {
      const Timed timed(&stages->seconds[kCompile]);
      auto compiled = CompileConstraint(ConstraintOf(*wire));
      if (!compiled.ok()) return FromStatus("schema", compiled.status());
      grammar = *std::move(compiled);
    }
    std::optional<TokenAutomaton> automaton;
    {
      const Timed timed(&stages->seconds[kAutomaton]);
      automaton.emplace(*std::move(grammar), table_);
    }
    if (const absl::Status start = automaton->CheckStart(); !start.ok()) return FromStatus("schema", start);
    return Walk(*automaton, stages);
  }

  std::optional<ApiError> Walk(TokenAutomaton& automaton, Stages* stages) const {
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
      stages->seconds[kMask] += seconds;
      stages->longest_mask = std::max(stages->longest_mask, seconds);
      std::erase_if(allowed, [&](int32_t id) { return table_->bytes(id).empty(); });
      if (allowed.empty()) return std::nullopt;
      // Now a long token, now any.
      const int32_t id = step % 2 == 0 ? allowed[(step * 7919) % allowed.size()]
                                       : *std::max_element(allowed.begin(), allowed.end(), [&](int a, int b) {
                                           return table_->bytes(a).size() < table_->bytes(b).size();
                                         });
      const Timed timed(&stages->seconds[kMask]);
      cursor.Accept(id);
    }
    return std::nullopt;
  }

  const ServedModel& model_;
  const std::shared_ptr<const TokenTable> table_;
};

}  // namespace

std::unique_ptr<StageMeter> StageMeter::Open(const ServedModel* model) {
  return std::make_unique<Meter>(model, std::make_shared<TokenTable>(*model->tokenizer, std::vector<int>{},
                                                                     model->tokenizer->vocab_size()));
}

}  // namespace aludel
