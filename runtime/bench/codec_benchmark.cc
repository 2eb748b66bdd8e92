#include "runtime/bench/codec_benchmark.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <deque>
#include <memory>
#include <random>

#include "absl/strings/str_format.h"
#include "kernels/ops.h"
#include "runtime/bench/halves_spread.h"
#include "runtime/codec/artifact/artifact_versions.h"
#include "runtime/codec/frame.h"
#include "runtime/codec/handoff.h"
#include "runtime/codec/open_codec.h"
#include "runtime/evaluate/in_process_handoff.h"
#include "runtime/evaluate/score.h"
#include "runtime/model/transformer_options.h"
#include "runtime/status_macros.h"

namespace aludel {
namespace {

constexpr int kBlockTokens = 16;
// Of a step, where a core's cache bounds them and where none does.
constexpr int64_t kCachedRows = 512;
constexpr int64_t kMaxRows = 4096;

using Clock = std::chrono::steady_clock;

double SecondsSince(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

double Median(std::vector<double> values) { return Percentile(std::move(values), 0.5); }

// Frames in memory that the device copies to and from at full speed, as a server's arenas are. Headers and checksums are left
// out: they are no codec's.
class FrameArena : public FrameSink {
 public:
  struct Frame {
    FrameCoverage coverage;
    absl::Span<const uint8_t> payload;
  };

  explicit FrameArena(Device* device) : device_(device) {}
  ~FrameArena() override { Unpin(); }
  FrameArena(const FrameArena&) = delete;
  FrameArena& operator=(const FrameArena&) = delete;

  absl::StatusOr<absl::Span<uint8_t>> Reserve(size_t max_bytes) override {
    largest_ = std::max(largest_, max_bytes);
    // The first handoff says how much there is; its frames have memory of their own.
    if (memory_.size() - used_ < max_bytes) {
      return reserved_.emplace_back(absl::MakeSpan(spill_.emplace_back(max_bytes)));
    }
    reserved_.push_back(absl::MakeSpan(memory_).subspan(used_, max_bytes));
    used_ += max_bytes;
    return reserved_.back();
  }

  absl::Status Commit(const FrameCoverage& coverage, size_t bytes) override {
    const absl::Span<uint8_t> reserved = reserved_.front();
    reserved_.pop_front();
    frames_.push_back({coverage, reserved.subspan(0, bytes)});
    if (reserved.data() + reserved.size() == memory_.data() + used_) used_ -= reserved.size() - bytes;
    bytes_ += bytes;
    return absl::OkStatus();
  }

  // Forgets the frames, and has room for as many bytes from then on.
  absl::Status Clear() {
    const size_t wanted = bytes_ + largest_;
    frames_.clear();
    spill_.clear();
    used_ = bytes_ = 0;
    if (wanted <= memory_.size()) return absl::OkStatus();
    Unpin();
    memory_.assign(wanted, 0);
    return device_->Pin(absl::MakeSpan(memory_));
  }

  const std::vector<Frame>& frames() const { return frames_; }
  size_t total_bytes() const { return bytes_ + frames_.size() * kFrameHeaderBytes; }

 private:
  void Unpin() {
    if (!memory_.empty()) device_->Unpin(absl::MakeSpan(memory_));
  }

  Device* const device_;
  std::vector<uint8_t> memory_;
  std::deque<std::vector<uint8_t>> spill_;
  std::deque<absl::Span<uint8_t>> reserved_;  // oldest first
  std::vector<Frame> frames_;
  size_t used_ = 0, bytes_ = 0, largest_ = 0;
};

struct Contestant {
  std::unique_ptr<EncoderFactory> encoder;
  std::unique_ptr<DecoderFactory> decoder;
  std::unique_ptr<FrameArena> frames;
  std::vector<double> encode, recompute, reconstruct;  // seconds
  double bytes = 0;
};

class Benchmark {
 public:
  Benchmark(const CodecBenchmarkOptions& options, Device* device) : options_(options), device_(device) {}

  absl::StatusOr<CodecBenchmark> Run(const std::function<bool(int64_t, int64_t)>& progress) {
    ALUDEL_RETURN_IF_ERROR(Load());
    std::vector<double> prefills, gemms;
    // The first pass warms caches and is not counted.
    const int64_t passes = options_.repeats + 1;
    for (int64_t pass = 0; pass < passes; ++pass) {
      if (!progress(pass, passes)) return absl::CancelledError("the benchmark was interrupted");
      ALUDEL_ASSIGN_OR_RETURN(const double gemm, GemmFlops());
      ALUDEL_ASSIGN_OR_RETURN(const double prefill, Prefill());
      for (Contestant& contestant : contestants_) ALUDEL_RETURN_IF_ERROR(Handoff(pass > 0, &contestant));
      if (pass == 0) continue;
      gemms.push_back(gemm);
      prefills.push_back(prefill);
    }
    progress(passes, passes);
    CodecBenchmark result;
    result.gemm_flops = Median(gemms);
    result.prefill_seconds = Median(prefills);
    result.raw_bytes =
        options_.tokens *
        static_cast<int64_t>(consumer_->MakeKvLayout(1, kBlockTokens, DType::kBf16).bytes_per_token());
    for (const Contestant& contestant : contestants_) {
      result.formats.push_back(TimesOf(contestant, prefills));
    }
    return result;
  }

 private:
  absl::Status Load() {
    TransformerOptions options;
    options.compute = options_.compute;
    options.max_rows = std::min(options_.tokens, device_->cache_bytes() > 0 ? kCachedRows : kMaxRows);
    ALUDEL_ASSIGN_OR_RETURN(producer_,
                            Transformer::Load(device_, ModelPath::Parse(options_.producer), options));
    ALUDEL_ASSIGN_OR_RETURN(consumer_,
                            Transformer::Load(device_, ModelPath::Parse(options_.consumer), options));
    const ModelConfig& config = consumer_->config();
    if (options_.tokens < 1 || options_.tokens > config.max_positions) {
      return absl::InvalidArgumentError(
          absl::StrFormat("--tokens is %d, want 1 to the model's %d", options_.tokens, config.max_positions));
    }
    const int64_t blocks = options_.tokens / kBlockTokens + 1;
    ALUDEL_ASSIGN_OR_RETURN(producer_pool_, Pool(*producer_, blocks));
    ALUDEL_ASSIGN_OR_RETURN(consumer_pool_, Pool(*consumer_, blocks));
    // Once: all formats are of one version, whatever is published meanwhile.
    ALUDEL_ASSIGN_OR_RETURN(const std::string codec, ResolveArtifact(options_.codec));
    for (const std::string& name : options_.formats) {
      Contestant contestant;
      ALUDEL_ASSIGN_OR_RETURN(contestant.encoder, OpenEncoders(name, codec, *producer_));
      ALUDEL_ASSIGN_OR_RETURN(contestant.decoder,
                              OpenDecoders(name, codec, *consumer_, /*adapter_hash=*/"", RangeCheck::kOff));
      contestant.frames = std::make_unique<FrameArena>(device_);
      contestants_.push_back(std::move(contestant));
    }
    std::mt19937 random(1);
    for (int64_t i = 0; i < options_.tokens; ++i)
      ids_.push_back(static_cast<int32_t>(random() % config.vocab));
    return MakeGemm();
  }

  absl::StatusOr<std::unique_ptr<BlockPool>> Pool(const Transformer& model, int64_t blocks) const {
    return BlockPool::Create(device_, model.MakeKvLayout(blocks, kBlockTokens, DType::kBf16));
  }

  // A product of the size of the model's largest.
  absl::Status MakeGemm() {
    const ModelConfig& config = consumer_->config();
    ALUDEL_ASSIGN_OR_RETURN(gemm_,
                            device_->ops().NewPacked(config.ffn, config.hidden, FormatOf(options_.compute)));
    for (int64_t row = 0; row < config.ffn; row += gemm_->row_block()) {
      const int64_t rows = std::min<int64_t>(gemm_->row_block(), config.ffn - row);
      std::vector<float> block(rows * config.hidden, 0.5f);
      ALUDEL_RETURN_IF_ERROR(
          device_->ops().PackRows(TensorView::Of(block.data(), rows, config.hidden), row, *gemm_));
    }
    const int64_t rows = consumer_->options().max_rows;
    ALUDEL_ASSIGN_OR_RETURN(gemm_in_, device_->Allocate(rows * config.hidden * SizeOf(options_.compute)));
    ALUDEL_ASSIGN_OR_RETURN(gemm_out_, device_->Allocate(rows * config.ffn * sizeof(float)));
    // Random numbers below 1 of either sign: a card multiplies zeros at clocks that no model sees.
    std::vector<uint8_t> numbers(gemm_in_.size());
    std::minstd_rand random;
    const size_t width = SizeOf(options_.compute);
    for (size_t i = 0; i + width <= numbers.size(); i += width) {
      const float value = static_cast<float>(random()) / static_cast<float>(random.max()) - 0.5f;
      const Bf16 narrow = ToBf16(value);
      std::memcpy(&numbers[i], width == sizeof(float) ? static_cast<const void*>(&value) : &narrow, width);
    }
    device_->CopyToDevice(gemm_in_.data(), numbers.data(), numbers.size(), consumer_->stream());
    return device_->Synchronize(consumer_->stream());
  }

  absl::StatusOr<double> GemmFlops() {
    constexpr int kProducts = 8;
    const int64_t rows = consumer_->options().max_rows;
    const TensorView in{gemm_in_.data(), options_.compute, rows, gemm_->in_features(), gemm_->in_features()};
    const TensorView out = TensorView::Of(gemm_out_.as<float>(), rows, gemm_->out_features());
    const Clock::time_point start = Clock::now();
    for (int i = 0; i < kProducts; ++i)
      device_->ops().Gemm(in, *gemm_, nullptr, false, out, consumer_->stream());
    ALUDEL_RETURN_IF_ERROR(device_->Synchronize(consumer_->stream()));
    return kProducts * 2.0 * static_cast<double>(rows * gemm_->in_features() * gemm_->out_features()) /
           SecondsSince(start);
  }

  absl::StatusOr<double> Prefill() {
    BlockTable table;
    ALUDEL_RETURN_IF_ERROR(table.Grow(*consumer_pool_, options_.tokens));
    const Clock::time_point start = Clock::now();
    ALUDEL_RETURN_IF_ERROR(
        RunTokens(*consumer_, *consumer_pool_, table.ids(), ids_, 0, options_.tokens, nullptr, nullptr));
    return SecondsSince(start);
  }

  // Seconds of encoding.
  absl::StatusOr<double> Encode(const EncoderFactory* encoder, int64_t end, FrameSink* frames) {
    const auto run = [&](absl::Span<const EncodeTask> tasks) {
      return EncodePrompt(*producer_, *producer_pool_, ids_, options_.tokens, tasks);
    };
    double seconds = 0;
    EncodeTask task{encoder, frames, end};
    if (device_->name() == "cpu") {
      task.seconds = &seconds;
      ALUDEL_RETURN_IF_ERROR(run({task}));
      return seconds;
    }
    const Clock::time_point begin = Clock::now();
    ALUDEL_RETURN_IF_ERROR(run({}));
    const Clock::time_point middle = Clock::now();
    ALUDEL_RETURN_IF_ERROR(run({task}));
    return SecondsSince(middle) - std::chrono::duration<double>(middle - begin).count();
  }

  absl::Status Handoff(bool counts, Contestant* contestant) {
    const TokenRange range = HandedOver(contestant->encoder->spec(), options_.tokens + 1);
    FrameArena& frames = *contestant->frames;
    ALUDEL_RETURN_IF_ERROR(frames.Clear());
    ALUDEL_ASSIGN_OR_RETURN(const double encode, Encode(contestant->encoder.get(), range.end, &frames));
    BlockTable table;
    ALUDEL_RETURN_IF_ERROR(table.Grow(*consumer_pool_, options_.tokens));
    const KvTarget target{consumer_.get(), consumer_pool_.get(), table.ids(), ids_, range.end, range.begin};
    ALUDEL_ASSIGN_OR_RETURN(const auto decoder, contestant->decoder->NewDecoder());
    const Clock::time_point begin = Clock::now();
    ALUDEL_RETURN_IF_ERROR(BeginHandoff(*decoder, target));
    ALUDEL_RETURN_IF_ERROR(device_->Synchronize(consumer_->stream()));
    const Clock::time_point begun = Clock::now();
    for (const FrameArena::Frame& frame : frames.frames()) {
      ALUDEL_RETURN_IF_ERROR(decoder->Apply(frame.coverage, frame.payload, target));
    }
    ALUDEL_RETURN_IF_ERROR(device_->Synchronize(consumer_->stream()));
    if (!counts) return absl::OkStatus();
    contestant->bytes = static_cast<double>(frames.total_bytes());
    contestant->encode.push_back(encode);
    contestant->reconstruct.push_back(SecondsSince(begun));
    contestant->recompute.push_back(std::chrono::duration<double>(begun - begin).count());
    return absl::OkStatus();
  }

  CodecTimes TimesOf(const Contestant& contestant, const std::vector<double>& prefills) const {
    const auto tokens = static_cast<double>(options_.tokens);
    CodecTimes times;
    times.format = contestant.decoder->spec().name;
    times.bytes_per_token = contestant.bytes / tokens;
    times.encode_seconds = Median(contestant.encode);
    times.recompute_seconds = Median(contestant.recompute);
    times.reconstruct_seconds = Median(contestant.reconstruct);
    std::vector<double> shares;
    for (size_t i = 0; i < prefills.size(); ++i) {
      shares.push_back((contestant.encode[i] + contestant.reconstruct[i]) / prefills[i]);
    }
    times.spread = HalvesSpread(shares);
    times.encode_flops = tokens * contestant.encoder->flops_per_token();
    times.reconstruct_flops = tokens * contestant.decoder->flops_per_token();
    return times;
  }

  const CodecBenchmarkOptions& options_;
  Device* device_;
  std::unique_ptr<Transformer> producer_, consumer_;
  std::unique_ptr<BlockPool> producer_pool_, consumer_pool_;
  std::unique_ptr<PackedMatrix> gemm_;
  Buffer gemm_in_, gemm_out_;
  std::vector<int32_t> ids_;
  std::vector<Contestant> contestants_;
};

}  // namespace

absl::StatusOr<CodecBenchmark> BenchmarkCodecs(
    const CodecBenchmarkOptions& options, Device* device,
    const std::function<bool(int64_t done, int64_t total)>& progress) {
  return Benchmark(options, device).Run(progress);
}

}  // namespace aludel
