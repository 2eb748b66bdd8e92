#include "runtime/evaluate/text_perplexity.h"

#include <algorithm>

#include "absl/strings/str_format.h"
#include "runtime/codec/handoff.h"
#include "runtime/evaluate/oracle.h"
#include "runtime/files/json_reader.h"
#include "runtime/status_macros.h"

namespace aludel {
namespace {

// Text tokens whose logits are in memory at once.
constexpr int64_t kScoredTogether = 32;
constexpr size_t kMaxTextBytes = size_t{1} << 30;

// Nats of tokens [begin, end) of `ids`, each after all before it; tokens [0, begin - 1) are in the cache.
absl::Status ScoreTokens(Transformer& consumer, BlockPool& pool, absl::Span<const int32_t> ids, int64_t begin,
                         const BlockTable& table, std::vector<double>* nats) {
  const auto end = static_cast<int64_t>(ids.size());
  const auto vocab = static_cast<size_t>(consumer.config().vocab);
  std::vector<float> logits;
  for (int64_t at = begin - 1; at + 1 < end;) {
    // One item per token, because each wants its logits; a layer's keys are all written before it attends.
    std::vector<BatchItem> items(std::min({kScoredTogether, consumer.options().max_rows, end - 1 - at}));
    for (size_t i = 0; i < items.size(); ++i) {
      items[i].ids = ids.subspan(at + static_cast<int64_t>(i), 1);
      items[i].position = at + static_cast<int64_t>(i);
      items[i].blocks = table.ids();
      items[i].wants_logits = true;
    }
    ALUDEL_RETURN_IF_ERROR(consumer.Forward(absl::MakeSpan(items), pool, &logits));
    for (size_t i = 0; i < items.size(); ++i) {
      nats->push_back(
          NegativeLogProbability(absl::MakeConstSpan(logits).subspan(i * vocab, vocab), ids[++at]));
    }
  }
  return absl::OkStatus();
}

absl::Status ScoreWindow(PairUnderTest& pair, absl::Span<const int32_t> window, TextNats* nats) {
  const auto tokens = static_cast<int64_t>(window.size());
  const int64_t handed_over = tokens / 2 - 1;
  ALUDEL_ASSIGN_OR_RETURN(const PairUnderTest::Tables tables, pair.Reserve(tokens));
  ALUDEL_RETURN_IF_ERROR(RunTokens(pair.consumer(), pair.oracle_pool(), tables.oracle.ids(), window, 0,
                                   handed_over, nullptr, nullptr));
  ALUDEL_RETURN_IF_ERROR(ScoreTokens(pair.consumer(), pair.oracle_pool(), window, handed_over + 1,
                                     tables.oracle, &nats->oracle));
  ALUDEL_ASSIGN_OR_RETURN(const std::vector<EncodedPrompt> encoded, pair.EncodeAll(window, handed_over));
  for (size_t i = 0; i < encoded.size(); ++i) {
    ALUDEL_RETURN_IF_ERROR(
        pair.Reconstruct(pair.formats()[i], encoded[i].frames, window, handed_over, tables.tested).status());
    ALUDEL_RETURN_IF_ERROR(ScoreTokens(pair.consumer(), pair.tested_pool(), window, handed_over + 1,
                                       tables.tested, &nats->formats[i]));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<TextNats> ScoreText(PairUnderTest& pair, const std::string& file, int64_t windows,
                                   int64_t window_tokens, const EvaluateProgress& progress) {
  ALUDEL_ASSIGN_OR_RETURN(const std::string text, ReadFile(file, kMaxTextBytes));
  ALUDEL_ASSIGN_OR_RETURN(const std::vector<int32_t> ids,
                          pair.writer().tokenizer().Encode(text, /*add_special_tokens=*/true));
  const int64_t window = std::min(window_tokens, pair.consumer().config().max_positions);
  const int64_t count = std::min(windows, static_cast<int64_t>(ids.size()) / window);
  if (count < 1) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%s holds %d tokens, want at least one window of %d", file, ids.size(), window));
  }
  TextNats nats;
  nats.formats.resize(pair.formats().size());
  for (int64_t w = 0; w < count; ++w) {
    if (!progress(file, w, count, "")) return absl::CancelledError("evaluation was interrupted");
    ALUDEL_RETURN_IF_ERROR(ScoreWindow(pair, absl::MakeConstSpan(ids).subspan(w * window, window), &nats));
  }
  progress(file, count, count, "");
  return nats;
}

}  // namespace aludel
