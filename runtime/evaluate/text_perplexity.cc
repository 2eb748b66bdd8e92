#include "runtime/evaluate/text_perplexity.h"

#include <algorithm>

#include "absl/strings/str_format.h"
#include "runtime/codec/handoff.h"
#include "runtime/evaluate/oracle.h"
#include "runtime/files/json_reader.h"
#include "runtime/status_macros.h"

namespace aludel {
namespace {

constexpr size_t kMaxTextBytes = size_t{1} << 30;

// Nats of tokens [begin, end) of `ids`, each after all before it; tokens [0, begin - 1) are in the cache.
absl::Status ScoreTokens(Transformer& model, BlockPool& pool, absl::Span<const int32_t> ids, int64_t begin,
                         const BlockTable& table, std::vector<double>* nats) {
  return ForwardEach(model, pool, table.ids(), ids, begin - 1, static_cast<int64_t>(ids.size()) - 1,
                     [&](int64_t token, absl::Span<const float> logits) {
                       nats->push_back(NegativeLogProbability(logits, ids[token + 1]));
                     });
}

absl::Status ScoreWindow(PairUnderTest& pair, absl::Span<const int32_t> window, TextNats* nats) {
  const int64_t handed_over = HandedOverOf(window);
  ALUDEL_ASSIGN_OR_RETURN(const PairUnderTest::Tables tables,
                          pair.Reserve(static_cast<int64_t>(window.size())));
  ALUDEL_RETURN_IF_ERROR(RunTokens(pair.oracle(), pair.oracle_pool(), tables.oracle.ids(), window, 0,
                                   handed_over, nullptr, nullptr));
  ALUDEL_RETURN_IF_ERROR(
      ScoreTokens(pair.oracle(), pair.oracle_pool(), window, handed_over + 1, tables.oracle, &nats->oracle));
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

int64_t HandedOverOf(absl::Span<const int32_t> window) { return static_cast<int64_t>(window.size()) / 2 - 1; }

absl::StatusOr<std::vector<std::vector<int32_t>>> CutWindows(PairUnderTest& pair, const std::string& file,
                                                             int64_t windows, int64_t window_tokens) {
  ALUDEL_ASSIGN_OR_RETURN(const std::string text, ReadFile(file, kMaxTextBytes));
  ALUDEL_ASSIGN_OR_RETURN(const std::vector<int32_t> ids,
                          pair.writer().tokenizer().Encode(text, /*add_special_tokens=*/true));
  const int64_t window = std::min(window_tokens, pair.consumer().config().max_positions);
  const int64_t count = std::min(windows, static_cast<int64_t>(ids.size()) / window);
  if (count < 1) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%s holds %d tokens, want at least one window of %d", file, ids.size(), window));
  }
  std::vector<std::vector<int32_t>> cut;
  for (int64_t w = 0; w < count; ++w) {
    cut.emplace_back(ids.begin() + w * window, ids.begin() + (w + 1) * window);
  }
  return cut;
}

absl::StatusOr<TextNats> ScoreText(PairUnderTest& pair, const std::string& name,
                                   absl::Span<const std::vector<int32_t>> windows,
                                   const EvaluateProgress& progress) {
  const auto count = static_cast<int64_t>(windows.size());
  TextNats nats;
  nats.formats.resize(pair.formats().size());
  for (int64_t w = 0; w < count; ++w) {
    if (!progress(name, w, count, "")) return absl::CancelledError("evaluation was interrupted");
    ALUDEL_RETURN_IF_ERROR(ScoreWindow(pair, windows[w], &nats));
  }
  progress(name, count, count, "");
  return nats;
}

}  // namespace aludel
