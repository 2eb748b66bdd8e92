#include "runtime/evaluate/upgrade_meter.h"

#include <algorithm>
#include <utility>

#include "absl/functional/function_ref.h"
#include "absl/strings/str_format.h"
#include "runtime/codec/aludel/plane_upgrades.h"
#include "runtime/codec/aludel/weight_files.h"
#include "runtime/codec/artifact/format_name.h"
#include "runtime/codec/handoff.h"
#include "runtime/evaluate/in_process_handoff.h"
#include "runtime/evaluate/oracle.h"
#include "runtime/evaluate/text_perplexity.h"
#include "runtime/status_macros.h"

namespace aludel {
namespace {

constexpr int64_t kFirstSpan = 8;

// What travels of a prompt in two parts.
struct SplitPrompt {
  std::vector<WireFrame> base;
  std::vector<WireFrame> joined;  // of both parts
  double base_bytes = 0, upgrade_bytes = 0;
};

// Sums over all windows; of tokens those that were handed over.
struct Bytes {
  double base = 0, upgrade = 0, whole = 0, tokens = 0;
};

absl::Status Put(FrameCoverage coverage, int plane, absl::Span<const uint8_t> payload, FrameStore* store) {
  coverage.plane = static_cast<uint16_t>(plane);
  ALUDEL_ASSIGN_OR_RETURN(const absl::Span<uint8_t> place, store->Reserve(payload.size()));
  std::copy(payload.begin(), payload.end(), place.begin());
  return store->Commit(coverage, payload.size());
}

absl::StatusOr<SplitPrompt> SplitAndJoin(const UpgradePair& formats, const std::vector<WireFrame>& frames) {
  const CodecSpec& spec = formats.whole->encoder->spec();
  FrameStore base(spec), upgrade(spec), joined(spec);
  PlaneUpgrades upgrades(formats.base_planes, formats.planes);
  for (const WireFrame& frame : frames) {
    ALUDEL_ASSIGN_OR_RETURN(const FrameHeader header, DecodeFrameHeader(frame.header));
    ALUDEL_ASSIGN_OR_RETURN(const PlaneSplit split, SplitPlanes(frame.payload, formats.base_planes));
    ALUDEL_RETURN_IF_ERROR(Put(header.coverage, 0, split.base, &base));
    ALUDEL_RETURN_IF_ERROR(Put(header.coverage, formats.base_planes, split.upgrade, &upgrade));
    ALUDEL_RETURN_IF_ERROR(upgrades.AddBase(header.coverage, split.base));
  }
  for (const WireFrame& frame : upgrade.frames()) {
    ALUDEL_RETURN_IF_ERROR(VerifyFrame(frame.header, frame.payload));
    ALUDEL_ASSIGN_OR_RETURN(const FrameHeader header, DecodeFrameHeader(frame.header));
    ALUDEL_ASSIGN_OR_RETURN(const std::vector<uint8_t> whole, upgrades.Join(header.coverage, frame.payload));
    ALUDEL_RETURN_IF_ERROR(Put(header.coverage, 0, whole, &joined));
  }
  return SplitPrompt{base.frames(), joined.frames(), static_cast<double>(base.total_bytes()),
                     static_cast<double>(upgrade.total_bytes())};
}

// A window of text: what is handed over, what is read behind it, and what the consumer's own cache has it
// expect there.
class Window {
 public:
  static absl::StatusOr<Window> Open(PairUnderTest& pair, absl::Span<const int32_t> ids) {
    Window window(pair, ids);
    ALUDEL_ASSIGN_OR_RETURN(window.tables_, pair.Reserve(static_cast<int64_t>(ids.size())));
    const absl::Span<const BlockId> own = window.tables_.oracle.ids();
    ALUDEL_RETURN_IF_ERROR(
        RunTokens(pair.consumer(), pair.oracle_pool(), own, ids, 0, window.begin_, nullptr, nullptr));
    ALUDEL_RETURN_IF_ERROR(ForwardEach(pair.consumer(), pair.oracle_pool(), own, ids, window.begin_,
                                       window.end_, [&](int64_t, absl::Span<const float> logits) {
                                         window.oracle_.insert(window.oracle_.end(), logits.begin(),
                                                               logits.end());
                                       }));
    return window;
  }

  int64_t handed_over() const { return begin_; }

  // KL of each token that is read. [end - begin]
  absl::StatusOr<std::vector<double>> Measure(const UpgradePair& formats, const SplitPrompt& prompt,
                                              const UpgradeCurve& curve) {
    std::vector<double> kl;
    const size_t vocab = oracle_.size() / static_cast<size_t>(end_ - begin_);
    const auto diverge = [&](int64_t token, absl::Span<const float> logits) {
      const auto own =
          absl::MakeConstSpan(oracle_).subspan(static_cast<size_t>(token - begin_) * vocab, vocab);
      kl.push_back(Diverge(own, logits).kl);
    };
    const int64_t upgraded = curve.after.has_value() ? begin_ + *curve.after : end_;
    ALUDEL_RETURN_IF_ERROR(
        pair_.Reconstruct(*formats.base, prompt.base, ids_, begin_, tables_.tested).status());
    ALUDEL_RETURN_IF_ERROR(Read(begin_, upgraded, diverge));
    // The tokens of the prompt that the codec leaves to the consumer are as what was read after them.
    if (curve.again || upgraded == begin_) {
      ALUDEL_RETURN_IF_ERROR(
          pair_.Reconstruct(*formats.whole, prompt.joined, ids_, begin_, tables_.tested).status());
      ALUDEL_RETURN_IF_ERROR(Run(begin_, upgraded));
    } else if (upgraded < end_) {
      ALUDEL_RETURN_IF_ERROR(Upgrade(*formats.whole, prompt.joined));
    }
    ALUDEL_RETURN_IF_ERROR(Read(upgraded, end_, diverge));
    return kl;
  }

 private:
  Window(PairUnderTest& pair, absl::Span<const int32_t> ids)
      : pair_(pair), ids_(ids), begin_(HandedOverOf(ids)), end_(static_cast<int64_t>(ids.size()) - 1) {}

  absl::Status Run(int64_t begin, int64_t end) {
    return RunTokens(pair_.consumer(), pair_.tested_pool(), tables_.tested.ids(), ids_, begin, end, nullptr,
                     nullptr);
  }
  absl::Status Read(int64_t begin, int64_t end,
                    absl::FunctionRef<void(int64_t, absl::Span<const float>)> each) {
    return ForwardEach(pair_.consumer(), pair_.tested_pool(), tables_.tested.ids(), ids_, begin, end, each);
  }
  // What was handed over, and nothing that was computed over it.
  absl::Status Upgrade(const FormatUnderTest& whole, const std::vector<WireFrame>& frames) {
    const TokenRange range = HandedOver(whole.decoder->spec(), begin_ + 1);
    if (range.tokens() == 0) return absl::OkStatus();
    return ApplyFrames(
        frames, *whole.decoder,
        {&pair_.consumer(), &pair_.tested_pool(), tables_.tested.ids(), ids_, range.end, range.begin});
  }

  PairUnderTest& pair_;
  const absl::Span<const int32_t> ids_;
  const int64_t begin_, end_;  // tokens [begin, end) are read, each for what follows it
  PairUnderTest::Tables tables_;
  std::vector<float> oracle_;  // [end - begin, vocab]
};

// Means of the windows' spans of one curve.
class CurveTally {
 public:
  explicit CurveTally(const std::vector<int64_t>& spans) : spans_(spans), means_(spans.size()) {}

  void Add(const std::vector<double>& kl) {
    auto from = kl.begin();
    for (size_t s = 0; s < spans_.size(); ++s) {
      const auto to = kl.begin() + spans_[s];
      means_[s].push_back(Mean({from, to}));
      from = to;
    }
  }
  void Fill(uint64_t seed, UpgradeCurve* curve) const {
    for (const std::vector<double>& means : means_) {
      curve->kl.push_back(Mean(means));
      curve->kl_ci95.push_back(BootstrapMean(means, {}, seed));
    }
  }

 private:
  const std::vector<int64_t>& spans_;
  std::vector<std::vector<double>> means_;  // [spans][windows]
};

std::vector<UpgradeCurve> CurvesOf(absl::Span<const int64_t> after) {
  std::vector<UpgradeCurve> curves = {{.after = 0}};
  for (const int64_t tokens : after) {
    curves.push_back({.after = tokens});
    curves.push_back({.after = tokens, .again = true});
  }
  curves.push_back({});
  return curves;
}

size_t PlaceOf(const PairUnderTest& pair, const FormatUnderTest* format) {
  return static_cast<size_t>(format - pair.formats().data());
}

}  // namespace

absl::StatusOr<std::vector<UpgradePair>> FindUpgradePairs(const PairUnderTest& pair) {
  std::vector<UpgradePair> pairs;
  for (const FormatUnderTest& cut : pair.formats()) {
    const absl::StatusOr<NamedFormat> named = FindNamed(pair.manifest(), cut.name);
    if (!named.ok() || named->planes == 0) continue;
    ALUDEL_ASSIGN_OR_RETURN(const int planes, LoadPlanes(pair.manifest(), *named->format));
    for (const FormatUnderTest& whole : pair.formats()) {
      if (whole.name == named->format->name && named->planes < planes) {
        pairs.push_back({&cut, &whole, named->planes, planes});
      }
    }
  }
  if (!pairs.empty()) return pairs;
  return absl::NotFoundError(
      "--upgrade-after: --formats has no cut NAME@N beside the whole NAME of an embedded format");
}

std::vector<int64_t> UpgradeSpans(int64_t tokens) {
  std::vector<int64_t> ends;
  for (int64_t end = kFirstSpan; end < tokens; end *= 2) ends.push_back(end);
  ends.push_back(tokens);
  return ends;
}

absl::StatusOr<std::vector<UpgradeResult>> MeasureUpgrades(PairUnderTest& pair,
                                                           absl::Span<const std::vector<int32_t>> windows,
                                                           absl::Span<const int64_t> after, uint64_t seed,
                                                           const EvaluateProgress& progress) {
  ALUDEL_ASSIGN_OR_RETURN(const std::vector<UpgradePair> pairs, FindUpgradePairs(pair));
  const auto window_tokens = static_cast<int64_t>(windows.front().size());
  const int64_t read = window_tokens - 1 - HandedOverOf(windows.front());
  if (!after.empty() && after.back() >= read) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "--upgrade-after: an upgrade after %d tokens, but a window of %d tokens has %d that are read",
        after.back(), window_tokens, read));
  }
  const std::vector<int64_t> spans = UpgradeSpans(read);
  const std::vector<UpgradeCurve> curves = CurvesOf(after);
  std::vector<std::vector<CurveTally>> tallies(pairs.size(),
                                               std::vector<CurveTally>(curves.size(), CurveTally(spans)));
  std::vector<Bytes> bytes(pairs.size());
  const auto count = static_cast<int64_t>(windows.size());
  for (int64_t w = 0; w < count; ++w) {
    if (!progress("upgrades", w, count, "")) return absl::CancelledError("evaluation was interrupted");
    ALUDEL_ASSIGN_OR_RETURN(Window window, Window::Open(pair, windows[w]));
    ALUDEL_ASSIGN_OR_RETURN(const std::vector<EncodedPrompt> encoded,
                            pair.EncodeAll(windows[w], window.handed_over()));
    for (size_t p = 0; p < pairs.size(); ++p) {
      const EncodedPrompt& whole = encoded[PlaceOf(pair, pairs[p].whole)];
      ALUDEL_ASSIGN_OR_RETURN(const SplitPrompt prompt, SplitAndJoin(pairs[p], whole.frames));
      bytes[p].base += prompt.base_bytes;
      bytes[p].upgrade += prompt.upgrade_bytes;
      bytes[p].whole += whole.bytes;
      bytes[p].tokens +=
          static_cast<double>(HandedOver(pairs[p].whole->encoder->spec(), window.handed_over() + 1).tokens());
      for (size_t c = 0; c < curves.size(); ++c) {
        ALUDEL_ASSIGN_OR_RETURN(const std::vector<double> kl, window.Measure(pairs[p], prompt, curves[c]));
        tallies[p][c].Add(kl);
      }
    }
  }
  progress("upgrades", count, count, "");
  std::vector<UpgradeResult> results;
  for (size_t p = 0; p < pairs.size(); ++p) {
    const double tokens = std::max(1.0, bytes[p].tokens);
    UpgradeResult result{.format = pairs[p].base->name,
                         .windows = count,
                         .base_bytes_per_token = bytes[p].base / tokens,
                         .upgrade_bytes_per_token = bytes[p].upgrade / tokens,
                         .whole_bytes_per_token = bytes[p].whole / tokens,
                         .spans = spans,
                         .curves = curves};
    for (size_t c = 0; c < curves.size(); ++c) tallies[p][c].Fill(seed, &result.curves[c]);
    results.push_back(std::move(result));
  }
  return results;
}

}  // namespace aludel
