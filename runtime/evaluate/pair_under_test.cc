#include "runtime/evaluate/pair_under_test.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "runtime/codec/artifact/artifact_versions.h"
#include "runtime/codec/handoff.h"
#include "runtime/codec/open_codec.h"
#include "runtime/evaluate/check_pair.h"
#include "runtime/model/transformer_options.h"
#include "runtime/status_macros.h"

namespace aludel {
namespace {

constexpr int kBlockTokens = 16;

using Clock = std::chrono::steady_clock;

constexpr DType kOracleDtype = DType::kBf16;

absl::StatusOr<std::unique_ptr<BlockPool>> MakePool(const Transformer& model, Device* device, int64_t tokens,
                                                    DType dtype) {
  const int64_t blocks = tokens / kBlockTokens + 1;
  return BlockPool::Create(device, model.MakeKvLayout(blocks, kBlockTokens, dtype));
}

}  // namespace

absl::StatusOr<std::unique_ptr<PairUnderTest>> PairUnderTest::Load(const EvaluateJob& job, Device* device) {
  ALUDEL_RETURN_IF_ERROR(CheckPair(ModelPath::Parse(job.producer), ModelPath::Parse(job.consumer)).status());
  std::unique_ptr<PairUnderTest> pair(new PairUnderTest());
  TransformerOptions options;
  options.compute = job.compute;
  options.weights = job.weights;
  options.max_rows = job.max_num_batched_tokens;
  ALUDEL_ASSIGN_OR_RETURN(pair->producer_,
                          Transformer::Load(device, ModelPath::Parse(job.producer), options));
  ALUDEL_ASSIGN_OR_RETURN(pair->consumer_,
                          Transformer::Load(device, ModelPath::Parse(job.consumer), options));
  if (job.unrounded_oracle) {
    options.weights = FormatOf(job.compute);
    ALUDEL_ASSIGN_OR_RETURN(pair->oracle_,
                            Transformer::Load(device, ModelPath::Parse(job.consumer), options));
  }
  ALUDEL_ASSIGN_OR_RETURN(PromptWriter writer, PromptWriter::Load(ModelPath::Parse(job.consumer)));
  pair->writer_ = std::make_unique<PromptWriter>(std::move(writer));
  ALUDEL_RETURN_IF_ERROR(pair->OpenFormats(job));
  const int64_t tokens = pair->consumer_->config().max_positions;
  const DType dtype = job.kv_dtype;
  ALUDEL_ASSIGN_OR_RETURN(pair->producer_pool_, MakePool(*pair->producer_, device, tokens, dtype));
  ALUDEL_ASSIGN_OR_RETURN(pair->oracle_pool_, MakePool(*pair->consumer_, device, tokens, kOracleDtype));
  if (dtype != kOracleDtype) {
    ALUDEL_ASSIGN_OR_RETURN(pair->tested_pool_, MakePool(*pair->consumer_, device, tokens, dtype));
  }
  return pair;
}

absl::StatusOr<PairUnderTest::Tables> PairUnderTest::Reserve(int64_t tokens) {
  Tables tables;
  ALUDEL_RETURN_IF_ERROR(tables.oracle.Grow(*oracle_pool_, tokens));
  if (tested_pool_ != nullptr) {
    ALUDEL_RETURN_IF_ERROR(tables.tested.Grow(*tested_pool_, tokens));
  } else {
    for (const BlockRef& block : tables.oracle.blocks()) tables.tested.Append(block);
  }
  return tables;
}

absl::Status PairUnderTest::OpenFormats(const EvaluateJob& job) {
  // Once: all formats are of one version, whatever is published meanwhile.
  ALUDEL_ASSIGN_OR_RETURN(const std::string codec, ResolveArtifact(job.codec));
  ALUDEL_ASSIGN_OR_RETURN(std::vector<std::string> names, ListFormats(codec, consumer_->hash()));
  ALUDEL_ASSIGN_OR_RETURN(const std::vector<std::string> controls, ListControls(codec, consumer_->hash()));
  ALUDEL_ASSIGN_OR_RETURN(const std::vector<std::string> cuts, ListCuts(codec, consumer_->hash()));
  names.insert(names.end(), cuts.begin(), cuts.end());
  const std::vector<std::string> baselines = ListBaselines();
  names.insert(names.end(), baselines.begin(), baselines.end());
  names.insert(names.end(), controls.begin(), controls.end());
  if (job.formats != "all") names = absl::StrSplit(job.formats, ',', absl::SkipEmpty());
  if (!codec.empty()) {
    ALUDEL_ASSIGN_OR_RETURN(manifest_, LoadArtifactManifest(codec));
  }
  for (const std::string& name : names) {
    FormatUnderTest format;
    if (const auto found = manifest_.Find(name); found.ok()) format.format = *found;
    if (std::find(controls.begin(), controls.end(), name) == controls.end()) {
      ALUDEL_ASSIGN_OR_RETURN(format.encoder, OpenEncoders(name, codec, *producer_));
    }
    ALUDEL_ASSIGN_OR_RETURN(format.decoder,
                            OpenDecoders(name, codec, *consumer_, /*adapter_hash=*/"", RangeCheck::kOff));
    format.name = format.decoder->spec().name;
    if (format.decoder->spec().base_planes > 0) {
      return absl::InvalidArgumentError(absl::StrCat(
          "--formats: \"", name,
          "\" comes in two parts; what it loses meanwhile is NAME@N, NAME with --upgrade-after"));
    }
    formats_.push_back(std::move(format));
  }
  if (formats_.empty()) return absl::InvalidArgumentError("--formats names no format");
  return absl::OkStatus();
}

absl::StatusOr<std::vector<EncodedPrompt>> PairUnderTest::EncodeAll(absl::Span<const int32_t> ids,
                                                                    int64_t tokens) {
  std::vector<std::unique_ptr<FrameStore>> stores(formats_.size());
  std::vector<EncodeTask> tasks;
  std::vector<EncodedPrompt> encoded(formats_.size());
  for (size_t i = 0; i < formats_.size(); ++i) {
    const EncoderFactory* const encoder = formats_[i].encoder.get();
    if (encoder == nullptr) continue;
    stores[i] = std::make_unique<FrameStore>(encoder->spec());
    tasks.push_back(
        {encoder, stores[i].get(), HandedOver(encoder->spec(), tokens + 1).end, &encoded[i].seconds});
  }
  ALUDEL_RETURN_IF_ERROR(EncodePrompt(*producer_, *producer_pool_, ids, tokens, absl::MakeSpan(tasks)));
  for (size_t i = 0; i < formats_.size(); ++i) {
    if (stores[i] == nullptr) continue;
    encoded[i].bytes = static_cast<double>(stores[i]->total_bytes());
    encoded[i].frames = stores[i]->frames();
  }
  return encoded;
}

absl::StatusOr<double> PairUnderTest::Reconstruct(const FormatUnderTest& format,
                                                  const std::vector<WireFrame>& frames,
                                                  absl::Span<const int32_t> ids, int64_t tokens,
                                                  const BlockTable& table) {
  const TokenRange range = HandedOver(format.decoder->spec(), tokens + 1);
  const KvTarget target{consumer_.get(), &tested_pool(), table.ids(), ids, range.end, range.begin};
  const Clock::time_point start = Clock::now();
  if (range.tokens() > 0) ALUDEL_RETURN_IF_ERROR(ApplyFrames(frames, *format.decoder, target));
  const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
  ALUDEL_RETURN_IF_ERROR(
      RunTokens(*consumer_, tested_pool(), table.ids(), ids, range.end, tokens, nullptr, nullptr));
  return seconds;
}

}  // namespace aludel
