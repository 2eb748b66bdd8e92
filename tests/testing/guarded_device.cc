#include "tests/testing/guarded_device.h"

#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/hash/hash.h"
#include "absl/strings/string_view.h"
#include "kernels/check.h"
#include "kernels/cuda/launch_digest.h"
#include "kernels/open_device.h"
#include "kernels/ops.h"
#include "kernels/replay_kinds.h"
#include "kernels/stream_marks.h"
#include "tests/testing/guarded_memory.h"

namespace aludel {
namespace {

constexpr int kOnes = 0xff;

// Work that waits for its stream to be synchronized.
struct Queue {
  std::deque<std::function<void()>> work;
};

// What the operations of repeated work are told, but for what host arrays hold and how long block lists are.
struct Trace {
  int64_t positions;  // before which every sequence shall end
  bool in_vain;       // operations are noted and not run
  std::vector<uint64_t> calls = {};
  const SequenceRows* table = nullptr;  // the one list of sequences
};
thread_local Trace* current_trace = nullptr;

// What every operation of a step is told, kept until it runs.
class KeptSequences {
 public:
  explicit KeptSequences(absl::Span<const SequenceRows> sequences)
      : rows_(sequences.begin(), sequences.end()) {
    for (const SequenceRows& s : sequences) blocks_.emplace_back(s.blocks.begin(), s.blocks.end());
  }
  std::vector<SequenceRows> rows() const {
    std::vector<SequenceRows> whole = rows_;
    for (size_t i = 0; i < whole.size(); ++i) whole[i].blocks = blocks_[i];
    return whole;
  }

 private:
  std::vector<SequenceRows> rows_;
  std::vector<std::vector<int32_t>> blocks_;
};
struct Frequencies {
  explicit Frequencies(const RopeTable& table)
      : values(table.inverse_frequency.begin(), table.inverse_frequency.end()),
        factor(table.attention_factor) {}
  RopeTable table() const { return {values, factor}; }
  std::vector<float> values;
  float factor;
};

class GuardedOps final : public Ops {
 public:
  using Enqueue = std::function<void(Stream, std::function<void()>)>;

  GuardedOps(Ops* ops, GuardedMemory* memory, Enqueue enqueue)
      : ops_(ops), memory_(memory), enqueue_(std::move(enqueue)) {}

  absl::StatusOr<std::unique_ptr<PackedMatrix>> NewPacked(int64_t out, int64_t in,
                                                          WeightFormat format) override {
    return ops_->NewPacked(out, in, format);
  }
  absl::Status PackRows(const TensorView& host_rows, int64_t row_begin, PackedMatrix& w) override {
    ALUDEL_CHECK(!memory_->Holds(host_rows.data, 1));
    return ops_->PackRows(host_rows, row_begin, w);
  }
  absl::Status PackFp8Rows(const Fp8Rows& host_rows, int64_t row_begin, PackedMatrix& w) override {
    ALUDEL_CHECK(!memory_->Holds(host_rows.codes, 1));
    return ops_->PackFp8Rows(host_rows, row_begin, w);
  }
  bool KeepsFp8() const override { return ops_->KeepsFp8(); }
  bool KeepsNarrow() const override { return ops_->KeepsNarrow(); }
  void Embed(absl::Span<const int32_t> ids, const PackedMatrix& table, const TensorView& out,
             Stream stream) override {
    Check({out});
    if (InVain("Embed", ids.size(), &table, out)) return;
    enqueue_(stream, [this, ids = std::vector<int32_t>(ids.begin(), ids.end()), &table, out] {
      ops_->Embed(ids, table, out, {});
    });
  }
  void RmsNorm(const TensorView& x, const float* weight, float eps, const TensorView& out,
               Stream stream) override {
    Check({x, out});
    CheckPointer(weight);
    if (InVain("RmsNorm", x, weight, eps, out)) return;
    enqueue_(stream, [=, this] { ops_->RmsNorm(x, weight, eps, out, {}); });
  }
  void Gemm(const TensorView& a, const PackedMatrix& w, const float* bias, bool accumulate,
            const TensorView& out, Stream stream) override {
    Check({a, out});
    CheckPointer(bias);
    if (InVain("Gemm", a, &w, bias, accumulate, out)) return;
    enqueue_(stream, [=, this, &w] { ops_->Gemm(a, w, bias, accumulate, out, {}); });
  }
  absl::StatusOr<std::unique_ptr<PackedLowRank>> PackLowRank(absl::Span<const LowRankPart> parts, int64_t out,
                                                             int64_t in, DType dtype) override {
    return ops_->PackLowRank(parts, out, in, dtype);
  }
  void AddLowRank(const TensorView& x, absl::Span<const LowRankRows> groups, const TensorView& out,
                  Stream stream) override {
    Check({x, out});
    // No part of a step that is repeated: the rows of each adapter differ from step to step.
    ALUDEL_CHECK(current_trace == nullptr);
    std::vector<std::pair<const PackedLowRank*, std::vector<int32_t>>> lists;
    for (const LowRankRows& group : groups) {
      lists.emplace_back(group.update, std::vector<int32_t>(group.rows.begin(), group.rows.end()));
    }
    enqueue_(stream, [this, x, lists = std::move(lists), out] {
      std::vector<LowRankRows> kept;
      for (const auto& [update, rows] : lists) kept.push_back({update, rows});
      ops_->AddLowRank(x, kept, out, {});
    });
  }
  void HeadNorm(const TensorView& x, int head_dim, const float* weight, float eps, Stream stream) override {
    Check({x});
    CheckPointer(weight);
    if (InVain("HeadNorm", x, head_dim, weight, eps)) return;
    enqueue_(stream, [=, this] { ops_->HeadNorm(x, head_dim, weight, eps, {}); });
  }
  void Rope(const TensorView& q, int head_dim, const RopeTable& rope,
            absl::Span<const SequenceRows> sequences, Stream stream) override {
    Check({q});
    CheckTable(sequences);
    if (InVain("Rope", q, head_dim, rope.inverse_frequency.size(), rope.attention_factor, sequences.size())) {
      return;
    }
    enqueue_(stream, [=, this, frequencies = Frequencies(rope), list = KeptSequences(sequences)] {
      ops_->Rope(q, head_dim, frequencies.table(), list.rows(), {});
    });
  }
  void RopeWriteKv(const TensorView& k, const TensorView& v, const RopeTable& rope,
                   absl::Span<const SequenceRows> sequences, const PagedKv& kv, Stream stream) override {
    Check({k, v});
    CheckPages(kv);
    CheckTable(sequences);
    if (InVain("RopeWriteKv", k, v, rope.inverse_frequency.size(), rope.attention_factor, sequences.size(),
               kv.k, kv.v, kv.dtype, kv.block_tokens)) {
      return;
    }
    enqueue_(stream, [=, this, frequencies = Frequencies(rope), list = KeptSequences(sequences)] {
      ops_->RopeWriteKv(k, v, frequencies.table(), list.rows(), kv, {});
    });
  }
  void Attention(const TensorView& q, const AttentionParams& params, absl::Span<const SequenceRows> sequences,
                 const PagedKv& kv, const TensorView& out, Stream stream) override {
    Check({q, out});
    CheckPages(kv);
    CheckTable(sequences);
    if (InVain("Attention", q, params.scale, params.window, sequences.size(), kv.k, kv.v, out)) return;
    enqueue_(stream, [=, this, list = KeptSequences(sequences)] {
      ops_->Attention(q, params, list.rows(), kv, out, {});
    });
  }
  void SiluMul(const TensorView& gate_up, const TensorView& out, Stream stream) override {
    Check({gate_up, out});
    if (InVain("SiluMul", gate_up, out)) return;
    enqueue_(stream, [=, this] { ops_->SiluMul(gate_up, out, {}); });
  }
  void Silu(const TensorView& x, const TensorView& out, Stream stream) override {
    Check({x, out});
    if (InVain("Silu", x, out)) return;
    enqueue_(stream, [=, this] { ops_->Silu(x, out, {}); });
  }
  void GatherRows(const TensorView& x, absl::Span<const int64_t> rows, const TensorView& out,
                  Stream stream) override {
    Check({x, out});
    if (InVain("GatherRows", x, rows.size(), out)) return;
    enqueue_(stream, [this, x, rows = std::vector<int64_t>(rows.begin(), rows.end()), out] {
      ops_->GatherRows(x, rows, out, {});
    });
  }
  void SampleRows(const TensorView& logits, absl::Span<const RowSampling> draws, int32_t* tokens,
                  Stream stream) override {
    Check({logits});
    ALUDEL_CHECK(memory_->Holds(tokens, draws.size() * sizeof(*tokens)));
    if (InVain("SampleRows", logits, draws.size(), tokens)) return;
    enqueue_(stream, [this, logits, draws = std::vector<RowSampling>(draws.begin(), draws.end()), tokens] {
      ops_->SampleRows(logits, draws, tokens, {});
    });
  }
  void PackLatents(const TensorView& z, float inverse_step, absl::Span<const LatentPlane> planes,
                   uint8_t* bytes, Stream stream) override {
    Check({z});
    CheckPlanes(bytes, planes, z.rows);
    enqueue_(stream, [=, this, copy = std::vector<LatentPlane>(planes.begin(), planes.end())] {
      ops_->PackLatents(z, inverse_step, copy, bytes, {});
    });
  }
  void UnpackLatents(const uint8_t* bytes, absl::Span<const LatentPlane> planes, int64_t first, float step,
                     const TensorView& z, Stream stream) override {
    Check({z});
    CheckPlanes(bytes, planes, first + z.rows);
    enqueue_(stream, [=, this, copy = std::vector<LatentPlane>(planes.begin(), planes.end())] {
      ops_->UnpackLatents(bytes, copy, first, step, z, {});
    });
  }
  void QuantizeTokens(const TensorView& x, int bits, uint8_t* scales, uint8_t* codes,
                      Stream stream) override {
    Check({x});
    ALUDEL_CHECK(memory_->Holds(scales, 2 * x.rows) && memory_->Holds(codes, x.rows * x.cols * bits / 8));
    enqueue_(stream, [=, this] { ops_->QuantizeTokens(x, bits, scales, codes, {}); });
  }
  void DequantizeTokens(const uint8_t* scales, const uint8_t* codes, int bits, const TensorView& x,
                        Stream stream) override {
    Check({x});
    ALUDEL_CHECK(memory_->Holds(scales, 2 * x.rows) && memory_->Holds(codes, x.rows * x.cols * bits / 8));
    enqueue_(stream, [=, this] { ops_->DequantizeTokens(scales, codes, bits, x, {}); });
  }
  void Convert(const TensorView& src, const TensorView& dst, Stream stream) override {
    Check({src, dst});
    if (InVain("Convert", src, dst)) return;
    enqueue_(stream, [=, this] { ops_->Convert(src, dst, {}); });
  }

 private:
  void Check(const std::vector<TensorView>& views) const {
    for (const TensorView& view : views) {
      if (view.rows == 0 || view.cols == 0) continue;
      const size_t elements = static_cast<size_t>((view.rows - 1) * view.stride + view.cols);
      ALUDEL_CHECK(memory_->Holds(view.data, elements * SizeOf(view.dtype)));
    }
  }
  void CheckPointer(const float* values) const {
    ALUDEL_CHECK(values == nullptr || memory_->Holds(values, 4));
  }
  void CheckPlanes(const uint8_t* bytes, absl::Span<const LatentPlane> planes, int64_t tokens) const {
    for (const LatentPlane& plane : planes) {
      ALUDEL_CHECK(memory_->Holds(bytes + plane.offset, (tokens * plane.width + 7) / 8));
      ALUDEL_CHECK(plane.high_offset == 0 || memory_->Holds(bytes + plane.high_offset, tokens));
    }
  }
  void CheckPages(const PagedKv& kv) const {
    ALUDEL_CHECK(memory_->Holds(kv.k, 1) && memory_->Holds(kv.v, 1));
  }

  // Notes what an operation is told; whether it shall not be run.
  template <typename... Args>
  static bool InVain(absl::string_view operation, const Args&... args) {
    if (current_trace == nullptr) return false;
    current_trace->calls.push_back(absl::HashOf(operation, args...));
    return current_trace->in_vain;
  }
  static void CheckTable(absl::Span<const SequenceRows> sequences) {
    if (current_trace == nullptr) return;
    if (current_trace->table == nullptr) current_trace->table = sequences.data();
    ALUDEL_CHECK(current_trace->table == sequences.data());
    for (const SequenceRows& s : sequences) {
      ALUDEL_CHECK(s.position_begin + s.rows <= current_trace->positions);
    }
  }

  Ops* const ops_;
  GuardedMemory* const memory_;
  const Enqueue enqueue_;
};

class GuardedDevice final : public Device, public ReplayKinds, public StreamMarks {
 public:
  explicit GuardedDevice(std::unique_ptr<Device> cpu)
      : cpu_(std::move(cpu)), ops_(&cpu_->ops(), &memory_, [this](Stream stream, std::function<void()> work) {
          Enqueue(stream, std::move(work));
        }) {
    queues_.insert(&default_queue_);
  }

  std::string name() const override { return "guarded"; }

  absl::StatusOr<Buffer> Allocate(size_t bytes) override {
    absl::StatusOr<void*> data = memory_.Allocate(bytes);
    if (!data.ok()) return data.status();
    return Buffer(this, *data, bytes);
  }
  // As cudaFree: everything that is under way ends first.
  void Free(void* data) override {
    absl::MutexLock lock(&mutex_);
    for (Queue* queue : queues_) Run(queue);
    memory_.Free(data);
    traces_.clear();  // other work may meet the same addresses
  }

  absl::StatusOr<Stream> CreateStream() override {
    absl::MutexLock lock(&mutex_);
    auto* const queue = new Queue;
    queues_.insert(queue);
    return Stream{queue};
  }
  void DestroyStream(Stream stream) override {
    absl::MutexLock lock(&mutex_);
    auto* const queue = static_cast<Queue*>(stream.handle);
    Run(queue);
    queues_.erase(queue);
    delete queue;
  }

  void CopyToDevice(void* device, const void* host, size_t bytes, Stream stream) override {
    if (bytes == 0) return;
    ALUDEL_CHECK(current_trace == nullptr);
    ALUDEL_CHECK(memory_.Holds(device, bytes) && !memory_.Holds(host, 1));
    Enqueue(stream, [=] { std::memcpy(device, host, bytes); });
  }
  void CopyToHost(void* host, const void* device, size_t bytes, Stream stream) override {
    if (bytes == 0) return;
    ALUDEL_CHECK(current_trace == nullptr);
    ALUDEL_CHECK(memory_.Holds(device, bytes) && !memory_.Holds(host, 1));
    std::memset(host, kOnes, bytes);
    Enqueue(stream, [=] { std::memcpy(host, device, bytes); });
  }
  void Copy(void* to, const void* from, size_t bytes, Stream stream) override {
    if (bytes == 0) return;
    ALUDEL_CHECK(current_trace == nullptr);
    ALUDEL_CHECK(memory_.Holds(to, bytes) && memory_.Holds(from, bytes));
    Enqueue(stream, [=] { std::memcpy(to, from, bytes); });
  }
  absl::Status Synchronize(Stream stream) override {
    ALUDEL_CHECK(current_trace == nullptr);
    absl::MutexLock lock(&mutex_);
    Run(QueueOf(stream));
    return absl::OkStatus();
  }

  bool Finished(Stream stream) override {
    absl::MutexLock lock(&mutex_);
    return QueueOf(stream)->work.empty();
  }
  void Follow(Stream later, Stream earlier) override {
    absl::MutexLock lock(&mutex_);
    Queue* const before = QueueOf(earlier);
    const auto reached = std::make_shared<bool>(false);
    before->work.push_back([reached] { *reached = true; });
    AwaitIn(QueueOf(later), before, reached);
  }

  std::unique_ptr<Mark> MarkOf(Stream stream) override {
    const auto reached = std::make_shared<bool>(false);
    Enqueue(stream, [reached] { *reached = true; });
    return std::make_unique<QueueMark>(this, stream, reached);
  }
  void Follow(Stream later, const Mark& mark) override {
    const auto& earlier = static_cast<const QueueMark&>(mark);
    absl::MutexLock lock(&mutex_);
    AwaitIn(QueueOf(later), QueueOf(earlier.stream()), earlier.reached());
  }
  absl::Status TakeFailure(Stream) override { return absl::OkStatus(); }

  void Replay(const ReplayKey& key, Stream stream, absl::FunctionRef<void()> work) override {
    Trace first{key.positions, /*in_vain=*/true}, second{key.positions, /*in_vain=*/false};
    for (Trace* trace : {&first, &second}) {
      current_trace = trace;
      work();
      current_trace = nullptr;
    }
    ALUDEL_CHECK(first.calls == second.calls);
    absl::MutexLock lock(&mutex_);
    const auto [found, is_new] = traces_.emplace(std::pair(stream.handle, key.calls), first.calls);
    ALUDEL_CHECK(is_new || found->second == first.calls);
  }

  int64_t ReplayedPositions(int64_t positions) const override {
    int64_t rounded = 1;
    while (rounded < positions) rounded *= 8;
    return rounded;
  }

  Ops& ops() override { return ops_; }

 private:
  // Who asks a second time is answered that it has run: a GPU gets there without being waited for.
  class QueueMark final : public Mark {
   public:
    QueueMark(GuardedDevice* device, Stream stream, std::shared_ptr<const bool> reached)
        : device_(device), stream_(stream), reached_(std::move(reached)) {}
    bool Passed() override {
      if (std::exchange(asked_, true)) Await();
      return *reached_;
    }
    void Await() override {
      if (!*reached_) static_cast<void>(device_->Synchronize(stream_));
    }
    Stream stream() const { return stream_; }
    const std::shared_ptr<const bool>& reached() const { return reached_; }

   private:
    GuardedDevice* const device_;
    const Stream stream_;
    const std::shared_ptr<const bool> reached_;
    bool asked_ = false;
  };

  // What follows in `queue` runs once `before` has reached a place.
  static void AwaitIn(Queue* queue, Queue* before, std::shared_ptr<const bool> reached) {
    queue->work.push_back([before, reached = std::move(reached)] {
      while (!*reached) RunNext(before);
    });
  }
  Queue* QueueOf(Stream stream) {
    return stream.handle == nullptr ? &default_queue_ : static_cast<Queue*>(stream.handle);
  }
  void Enqueue(Stream stream, std::function<void()> work) {
    absl::MutexLock lock(&mutex_);
    QueueOf(stream)->work.push_back(std::move(work));
  }
  void Run(Queue* queue) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (queue->work.empty()) return;
    const GuardedMemory::Opened opened(&memory_);
    while (!queue->work.empty()) RunNext(queue);
  }
  static void RunNext(Queue* queue) {
    const std::function<void()> work = std::move(queue->work.front());
    queue->work.pop_front();
    work();
  }

  GuardedMemory memory_;
  const std::unique_ptr<Device> cpu_;
  GuardedOps ops_;
  absl::Mutex mutex_;  // of the queues; held while their work runs
  Queue default_queue_ ABSL_GUARDED_BY(mutex_);
  std::set<Queue*> queues_ ABSL_GUARDED_BY(mutex_);
  // By stream and key.
  std::map<std::pair<void*, uint64_t>, std::vector<uint64_t>> traces_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace

absl::StatusOr<std::unique_ptr<Device>> OpenGuardedDevice(int threads) {
  absl::StatusOr<std::unique_ptr<Device>> cpu = OpenDevice({.name = "cpu", .threads = threads});
  if (!cpu.ok()) return cpu.status();
  return std::make_unique<GuardedDevice>(*std::move(cpu));
}

}  // namespace aludel
