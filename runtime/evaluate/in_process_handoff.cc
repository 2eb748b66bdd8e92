#include "runtime/evaluate/in_process_handoff.h"

#include <chrono>
#include <memory>
#include <utility>

#include "absl/strings/str_format.h"
#include "kernels/check.h"
#include "runtime/codec/coverage.h"
#include "runtime/codec/handoff.h"
#include "runtime/status_macros.h"

namespace aludel {
namespace {

using Clock = std::chrono::steady_clock;

// Feeds encoders from a forward pass.
class EncodingObserver : public LayerObserver {
 public:
  EncodingObserver(const Transformer& model, absl::Span<const EncodeTask> tasks,
                   std::vector<std::unique_ptr<KvEncoder>> encoders)
      : model_(model), tasks_(tasks), encoders_(std::move(encoders)) {}

  absl::Status OnLayer(const LayerSlice& slice) override {
    for (size_t i = 0; i < tasks_.size(); ++i) {
      const auto part = ClipSlice(slice, tasks_[i].codec->spec().recomputed_head_tokens, tasks_[i].end);
      if (!part.has_value()) continue;
      if (tasks_[i].seconds == nullptr) {
        ALUDEL_RETURN_IF_ERROR(encoders_[i]->Encode(*part, *tasks_[i].sink));
        continue;
      }
      ALUDEL_RETURN_IF_ERROR(model_.device()->Synchronize(model_.stream()));
      const Clock::time_point start = Clock::now();
      ALUDEL_RETURN_IF_ERROR(encoders_[i]->Encode(*part, *tasks_[i].sink));
      ALUDEL_RETURN_IF_ERROR(model_.device()->Synchronize(model_.stream()));
      *tasks_[i].seconds += std::chrono::duration<double>(Clock::now() - start).count();
    }
    return absl::OkStatus();
  }

  // The first that wants them somewhere gets them there.
  TensorView KvRows(int layer) override {
    for (const auto& encoder : encoders_) {
      const TensorView rows = encoder->KvRows(layer);
      if (rows.data != nullptr) return rows;
    }
    return {};
  }

 private:
  const Transformer& model_;
  absl::Span<const EncodeTask> tasks_;
  std::vector<std::unique_ptr<KvEncoder>> encoders_;
};

}  // namespace

absl::StatusOr<absl::Span<uint8_t>> FrameStore::Reserve(size_t max_bytes) {
  return absl::MakeSpan(reserved_.emplace_back(max_bytes));
}

absl::Status FrameStore::Commit(const FrameCoverage& coverage, size_t bytes) {
  ALUDEL_CHECK(!reserved_.empty() && bytes <= reserved_.front().size());
  const std::vector<uint8_t> reserved = std::move(reserved_.front());
  reserved_.pop_front();
  FrameHeader header;
  header.kind = codec_.kind;
  header.sequence = static_cast<uint32_t>(frames_.size());
  header.coverage = coverage;
  header.artifact = ArtifactPrefix(codec_.artifact_hash);
  WireFrame frame;
  frame.payload.assign(reserved.begin(), reserved.begin() + static_cast<int64_t>(bytes));
  frame.header = EncodeFrameHeader(header, frame.payload);
  total_bytes_ += frame.header.size() + frame.payload.size();
  frames_.push_back(std::move(frame));
  return absl::OkStatus();
}

absl::Status EncodePrompt(Transformer& producer, BlockPool& pool, absl::Span<const int32_t> ids,
                          int64_t tokens, absl::Span<const EncodeTask> tasks) {
  BlockTable table;
  ALUDEL_RETURN_IF_ERROR(table.Grow(pool, tokens));
  std::vector<std::unique_ptr<KvEncoder>> encoders;
  for (const EncodeTask& task : tasks) {
    ALUDEL_ASSIGN_OR_RETURN(auto encoder, task.codec->NewEncoder());
    encoders.push_back(std::move(encoder));
  }
  EncodingObserver observer(producer, tasks, std::move(encoders));
  return RunTokens(producer, pool, table.ids(), ids, 0, tokens, &observer, nullptr);
}

namespace {

absl::Status EnqueueFrames(absl::Span<const WireFrame> frames, const DecoderFactory& codec,
                           const KvTarget& target, KvDecoder& decoder) {
  ALUDEL_RETURN_IF_ERROR(BeginHandoff(decoder, target));
  FrameLedger ledger(codec.spec().shipped_layers, static_cast<uint32_t>(target.begin),
                     static_cast<uint32_t>(target.tokens));
  for (const WireFrame& frame : frames) {
    ALUDEL_ASSIGN_OR_RETURN(const FrameHeader header, DecodeFrameHeader(frame.header));
    ALUDEL_RETURN_IF_ERROR(VerifyFrame(frame.header, frame.payload));
    if (header.kind != codec.spec().kind || header.artifact != ArtifactPrefix(codec.spec().artifact_hash)) {
      return absl::DataLossError(
          absl::StrFormat("frame of kind %d is not of format \"%s\"", header.kind, codec.spec().name));
    }
    ALUDEL_RETURN_IF_ERROR(ledger.Add(header.coverage));
    ALUDEL_RETURN_IF_ERROR(decoder.Apply(header.coverage, frame.payload, target));
  }
  if (!ledger.complete()) {
    return absl::DataLossError(
        absl::StrFormat("handoff misses %d (layer, token) cells", ledger.missing_cells()));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status ApplyFrames(absl::Span<const WireFrame> frames, const DecoderFactory& codec,
                         const KvTarget& target) {
  ALUDEL_ASSIGN_OR_RETURN(const std::unique_ptr<KvDecoder> decoder, codec.NewDecoder());
  const absl::Status enqueued = EnqueueFrames(frames, codec, target, *decoder);
  // The frames are the caller's again when this returns, whether all were good or not.
  const absl::Status run = target.model->device()->Synchronize(target.model->stream());
  return enqueued.ok() ? run : enqueued;
}

}  // namespace aludel
