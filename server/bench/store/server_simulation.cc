#include "server/bench/store/server_simulation.h"

#include <algorithm>
#include <iterator>
#include <limits>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "server/store/stored_frames.h"

namespace aludel {
namespace {

constexpr StoreTag kEncoder = {1};

std::vector<double> BytesOf(const std::vector<StoreSimFormat>& formats) {
  std::vector<double> bytes;
  for (const StoreSimFormat& format : formats) bytes.push_back(format.bytes_per_token);
  return bytes;
}

// As a server offers them: every format that is not the whole one.
std::vector<MemoryOrder::Cut> CutsOf(size_t formats) {
  std::vector<MemoryOrder::Cut> cuts;
  for (size_t planes = 1; planes < formats; ++planes) {
    cuts.push_back({kEncoder, static_cast<uint8_t>(planes)});
  }
  return cuts;
}

}  // namespace

ServerSimulation::ServerSimulation(absl::Span<const TraceRequest> trace, const StoreSimOptions& options)
    : trace_(trace),
      options_(options),
      by_utility_(options.policy == "server"),
      memory_limit_(static_cast<size_t>(options.devices[0].bytes)),
      frames_(BytesOf(options.formats)),
      utility_(CutsOf(options.formats.size())),
      marks_(memory_limit_) {
  if (options.devices.size() > 1) disk_.emplace(static_cast<uint64_t>(options.devices[1].bytes));
}

StoreSimResult ServerSimulation::Run() {
  StoreSimTally tally(options_, &result_);
  const std::vector<size_t> formats = DrawFormats(trace_.size(), options_);
  for (size_t i = 0; i < trace_.size(); ++i) {
    now_ = trace_[i].arrival;
    Ask(trace_[i], formats[i], &tally);
    result_.most_used =
        std::max(result_.most_used, static_cast<double>(memory_bytes_) / options_.devices[0].bytes);
    if (!disk_) continue;
    result_.most_used =
        std::max(result_.most_used, static_cast<double>(disk_->bytes()) / options_.devices[1].bytes);
  }
  tally.Finish();
  if (disk_) result_.written_bytes = static_cast<double>(disk_->written_bytes());
  return result_;
}

void ServerSimulation::Ask(const TraceRequest& request, size_t format, StoreSimTally* tally) {
  const uint8_t planes = frames_.PlanesOf(format);
  std::vector<Part> found;
  std::vector<std::pair<ChunkKey, uint8_t>> reads;  // and their planes
  Part at;
  for (Part next = FindNext(request, at, planes); next.blocks > 0; next = FindNext(request, at, planes)) {
    Take(next, planes);
    const Node& node = *index_.Find(next.key);
    const bool in_memory = node.memory_serves(planes);
    // What is read from disk is the whole record's; what is sent has the planes that are asked for.
    tally->Load(
        in_memory ? 0 : 1, format, next.tokens,
        static_cast<double>(frames_.PayloadBytes(next.tokens, in_memory ? planes : node.disk.planes)));
    if (!in_memory) reads.emplace_back(next.key, node.disk.planes);
    found.push_back(next);
    at = next;
  }
  for (auto part = found.rbegin(); part != found.rend(); ++part) {
    const Node* const node = index_.Find(part->key);
    if (node != nullptr && node->memory != nullptr) order_.splice(order_.begin(), order_, node->order);
  }
  for (const auto& [key, read_planes] : reads) {
    Node* const node = index_.Find(key);
    if (node == nullptr || !node->stored()) continue;
    KeepInMemory(node, read_planes);
    Evict();
  }
  const auto step = static_cast<size_t>(options_.chunk_tokens / kTraceBlock);
  while (at.block + at.blocks < request.blocks.size()) {
    at = PartBehind(request, at, step);
    if (!Store(at, planes)) break;
  }
  tally->End(request.input_tokens, format);
}

ServerSimulation::Part ServerSimulation::PartBehind(const TraceRequest& request, const Part& before,
                                                    size_t blocks) {
  Part part{
      .block = before.block + before.blocks, .begin = before.begin + before.tokens, .before = before.key};
  part.blocks = std::min(blocks, request.blocks.size() - part.block);
  std::vector<int32_t> names;
  for (size_t b = part.block; b < part.block + part.blocks; ++b) {
    const int64_t tokens = BlockTokens(request, b);
    const int64_t id = request.blocks[b];
    names.insert(names.end(),
                 {static_cast<int32_t>(id), static_cast<int32_t>(id >> 32), static_cast<int32_t>(tokens)});
    part.tokens += tokens;
  }
  part.key = hasher_.NameOf(part.before, names).key;
  return part;
}

ServerSimulation::Part ServerSimulation::FindNext(const TraceRequest& request, const Part& before,
                                                  uint8_t planes) {
  const size_t left = request.blocks.size() - before.block - before.blocks;
  for (size_t blocks = std::min<size_t>(left, options_.chunk_tokens / kTraceBlock); blocks > 0; --blocks) {
    const Part part = PartBehind(request, before, blocks);
    const Node* const node = index_.Find(part.key);
    if (node != nullptr && node->serves(planes)) return part;
  }
  return {};
}

void ServerSimulation::CountUse(Node* node, uint8_t planes) {
  ++node->requests;
  if (by_utility_) utility_.Used(node, planes, now_);
}

void ServerSimulation::Take(const Part& part, uint8_t planes) {
  Node* const node = index_.Find(part.key);
  CountUse(node, planes);
  node->wanted = true;
  WriteLater(node);
}

bool ServerSimulation::Store(const Part& part, uint8_t planes) {
  const double most = (by_utility_ ? MemoryMarks::kLow : 1) * static_cast<double>(memory_limit_);
  if (static_cast<double>(StoredWeight(part.tokens, *frames_.Of(part.tokens, planes))) > most) return false;
  const Node* const before = index_.Find(part.before);
  if (part.begin > 0 && (before == nullptr || !before->stored())) return false;
  Node* const node = index_.Add({.key = part.key,
                                 .before = part.before,
                                 .encoder = kEncoder,
                                 .token_begin = static_cast<uint32_t>(part.begin),
                                 .tokens = static_cast<uint32_t>(part.tokens)});
  CountUse(node, planes);
  KeepInMemory(node, planes);
  WriteLater(node);
  Evict();
  return true;
}

void ServerSimulation::ReplaceInMemory(Node* node, uint8_t planes) {
  const StoredFrames frames = frames_.Of(node->tokens, planes);
  const size_t bytes = StoredWeight(node->tokens, *frames);
  memory_bytes_ += bytes - node->memory_bytes;
  node->memory = frames;
  node->memory_bytes = bytes;
  node->memory_planes = planes;
  utility_.Moved(node, now_);
}

void ServerSimulation::KeepInMemory(Node* node, uint8_t planes) {
  if (node->memory_serves(planes)) return;
  if (node->memory != nullptr) return ReplaceInMemory(node, planes);
  node->memory = frames_.Of(node->tokens, planes);
  node->memory_bytes = StoredWeight(node->tokens, *node->memory);
  node->memory_planes = planes;
  const Node* const before = index_.Find(node->before);
  const bool follows = before != nullptr && before->memory != nullptr;
  if (follows && before->uses.Log2AtEpoch() < node->uses.Log2AtEpoch()) node->uses = before->uses;
  node->order = order_.insert(follows ? std::next(before->order) : order_.begin(), node);
  memory_bytes_ += node->memory_bytes;
  if (by_utility_) utility_.Add(node, now_);
}

void ServerSimulation::DropFromMemory(Node* node) {
  memory_bytes_ -= node->memory_bytes;
  utility_.Remove(node, now_);
  order_.erase(node->order);
  node->memory = nullptr;
  index_.Drop(node);
}

void ServerSimulation::Evict() {
  if (by_utility_) return DemoteByUtility();
  while (memory_bytes_ > memory_limit_) DropFromMemory(order_.back());
}

void ServerSimulation::DemoteByUtility() {
  if (!marks_.Begin(MemoryUse())) return;
  utility_.Begin({.prefill_seconds = 1 / options_.prefill_tokens_per_second,
                  .disk_bytes_per_second = options_.devices.back().bytes_per_second,
                  .disk_seconds = disk_keeps_},
                 now_);
  size_t cut_here = 0;
  std::vector<std::pair<Node*, uint8_t>> cuts;
  for (int moves = 0; marks_.GoesOn(MemoryUse(), moves); ++moves) {
    const MemoryOrder::Move move = utility_.Next(now_);
    if (move.node == nullptr) break;
    const size_t left = move.planes == 0 ? 0 : frames_.PayloadBytes(move.node->tokens, move.planes);
    if (left == 0 || (marks_.IsFull(MemoryUse()) && cut_here + left > MemoryMarks::kCutsInRow)) {
      DropFromMemory(move.node);
    } else if (marks_.IsFull(MemoryUse())) {
      cut_here += left;
      ++result_.cuts;
      ReplaceInMemory(move.node, move.planes);
    } else {
      // A server cuts it beside the requests; until then it is no other move's.
      cuts.emplace_back(move.node, move.planes);
      cutting_bytes_ += frames_.PayloadBytes(move.node->tokens, move.node->memory_planes) - left;
      utility_.PassOver(move.node, std::numeric_limits<double>::infinity(), now_);
    }
  }
  const double gap = utility_.End(marks_.low() - MemoryUse().kept, now_);
  if (marks_.End(MemoryUse())) result_.placement_gap = gap;
  cutting_bytes_ = 0;
  result_.cuts += cuts.size();
  for (const auto& [node, planes] : cuts) ReplaceInMemory(node, planes);
}

uint64_t ServerSimulation::RecordBytes(const Node& node, uint8_t planes) {
  return RoundUpToBlock(ChunkMetaBytes(node.tokens, 1) + frames_.PayloadBytes(node.tokens, planes));
}

void ServerSimulation::WriteLater(Node* node) {
  const bool on_disk =
      node->disk.exists() && (node->memory == nullptr || Serves(node->disk.planes, node->memory_planes));
  if (!disk_ || on_disk || node->memory == nullptr || node->requests < options_.min_requests) return;
  if (MakeRoom(RecordBytes(*node, node->memory_planes))) SetOnDisk(node, node->memory_planes);
}

bool ServerSimulation::MakeRoom(uint64_t record_bytes) {
  if (record_bytes > disk_->max_record_bytes()) return false;
  while (disk_->IsTight(record_bytes)) Retire(disk_->DropOldest());
  return disk_->HasRoom(record_bytes);
}

void ServerSimulation::Retire(const SimDisk::Segment& segment) {
  disk_keeps_ = now_ - segment.created;
  const std::vector<ChunkKey> survivors = Survivors(segment);
  for (const ChunkKey& key : survivors) {
    Node* const node = index_.Find(key);
    node->moving = frames_.Of(node->tokens, node->disk.planes);
    node->moving_planes = node->disk.planes;
  }
  for (const ChunkKey& key : segment.keys) {
    Node* const node = index_.Find(key);
    if (node != nullptr && node->disk.block == segment.number) DropFromDisk(node);
  }
  for (const ChunkKey& key : survivors) {
    Node* const node = index_.Find(key);
    if (disk_->HasRoom(RecordBytes(*node, node->moving_planes))) SetOnDisk(node, node->moving_planes);
    node->moving = nullptr;
    index_.Drop(node);
  }
}

std::vector<ChunkKey> ServerSimulation::Survivors(const SimDisk::Segment& segment) {
  std::vector<ChunkKey> survivors;
  absl::flat_hash_set<ChunkKey> seen;
  uint64_t bytes = 0;
  for (const ChunkKey& key : segment.keys) {
    const Node* const node = index_.Find(key);
    if (node == nullptr || node->disk.block != segment.number || !node->wanted) continue;
    if (!seen.insert(key).second) continue;
    survivors.push_back(key);
    bytes += RecordBytes(*node, node->disk.planes);
    if (bytes >= DiskLimits::RewrittenBytes(segment.bytes)) break;
  }
  return survivors;
}

void ServerSimulation::SetOnDisk(Node* node, uint8_t planes) {
  // In place of its block, its segment.
  node->disk.block = disk_->Append(node->key, RecordBytes(*node, planes), now_);
  node->disk.planes = planes;
  utility_.Moved(node, now_);
  node->wanted = false;
}

void ServerSimulation::DropFromDisk(Node* node) {
  node->disk = {};
  utility_.Moved(node, now_);
  index_.Drop(node);
}

}  // namespace aludel
