#include "server/prefill/frame_cache.h"

#include <openssl/sha.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "transport/monotonic_clock.h"

namespace aludel {
namespace {

// What an entry weighs beside its tokens and payloads, roughly.
constexpr size_t kChunkOverhead = 256;
constexpr size_t kFrameOverhead = 64;

size_t Weight(absl::Span<const int32_t> tokens, const std::vector<CachedFrame>& frames) {
  size_t bytes = kChunkOverhead + tokens.size() * sizeof(int32_t);
  for (const CachedFrame& frame : frames) bytes += kFrameOverhead + frame.payload.size();
  return bytes;
}

// A consumer waits for every cell of a handoff: half a chunk would be worse than none.
bool IsWhole(const CodecSpec& codec, int64_t begin, int64_t end, const std::vector<CachedFrame>& frames) {
  FrameLedger ledger(codec.shipped_layers, static_cast<uint32_t>(begin), static_cast<uint32_t>(end));
  for (const CachedFrame& frame : frames) {
    if (!ledger.Add(frame.coverage).ok()) return false;
  }
  return ledger.complete();
}

}  // namespace

FrameCache::Hash FrameCache::Root(const CodecSpec& codec, absl::string_view salt) {
  // Each field with its length in front, so that no two roots spell the same text.
  std::string text;
  for (const absl::string_view field :
       {absl::string_view(codec.name), absl::string_view(codec.artifact_hash), salt}) {
    absl::StrAppend(&text, field.size(), ":", field, ":");
  }
  Hash hash;
  SHA256(reinterpret_cast<const uint8_t*>(text.data()), text.size(), hash.data());
  return hash;
}

FrameCache::Hash FrameCache::Extend(const Hash& before, absl::Span<const int32_t> tokens) {
  std::vector<uint8_t> bytes(before.begin(), before.end());
  const auto* ids = reinterpret_cast<const uint8_t*>(tokens.data());
  bytes.insert(bytes.end(), ids, ids + tokens.size() * sizeof(int32_t));
  Hash hash;
  SHA256(bytes.data(), bytes.size(), hash.data());
  return hash;
}

FrameCache::Order::iterator FrameCache::FindChunk(const Hash& before, absl::Span<const int32_t> rest,
                                                  absl::Time since) {
  auto best = chunks_.end();
  const auto [first, last] = by_before_.equal_range(before);
  for (auto at = first; at != last; ++at) {
    const std::vector<int32_t>& tokens = at->second->tokens;
    if (tokens.size() > rest.size() || (best != chunks_.end() && tokens.size() <= best->tokens.size()))
      continue;
    if (at->second->added < since) continue;
    if (std::equal(tokens.begin(), tokens.end(), rest.begin())) best = at->second;
  }
  return best;
}

FrameCache::Match FrameCache::Find(const CodecSpec& codec, absl::string_view salt,
                                   absl::Span<const int32_t> prompt, absl::Duration max_age) {
  Match match;
  if (max_bytes_ == 0) return match;
  const absl::Time since = MonotonicNow() - max_age;
  absl::MutexLock lock(&mutex_);
  std::vector<Order::iterator> used;
  Hash before = Root(codec, salt);
  while (match.tokens < static_cast<int64_t>(prompt.size())) {
    const auto chunk = FindChunk(before, prompt.subspan(match.tokens), since);
    if (chunk == chunks_.end()) break;
    used.push_back(chunk);
    match.chunks.push_back(chunk->frames);
    match.tokens += static_cast<int64_t>(chunk->tokens.size());
    before = Extend(before, chunk->tokens);
  }
  // From the last to the first: what lies in front is always the younger one.
  for (auto chunk = used.rbegin(); chunk != used.rend(); ++chunk) {
    chunks_.splice(chunks_.begin(), chunks_, *chunk);
  }
  stats_.tokens += match.tokens;
  ++(match.tokens == static_cast<int64_t>(prompt.size()) ? stats_.hits
     : match.tokens > 0                                  ? stats_.partial_hits
                                                         : stats_.misses);
  return match;
}

void FrameCache::Insert(const CodecSpec& codec, absl::string_view salt, absl::Span<const int32_t> prompt,
                        int64_t begin, std::vector<CachedFrame> frames) {
  if (max_bytes_ == 0) return;
  // A chunk is named by the end of its tokens: recomputed head tokens in front of its frames belong to it.
  std::map<int64_t, std::vector<CachedFrame>> by_end;
  for (CachedFrame& frame : frames) {
    by_end[int64_t{frame.coverage.token_begin} + frame.coverage.tokens].push_back(std::move(frame));
  }

  absl::MutexLock lock(&mutex_);
  Hash before = Root(codec, salt);
  int64_t at = 0;
  while (at < begin) {
    const auto chunk = FindChunk(before, prompt.subspan(at, begin - at), absl::InfinitePast());
    if (chunk == chunks_.end()) return;  // evicted meanwhile
    before = Extend(before, chunk->tokens);
    at += static_cast<int64_t>(chunk->tokens.size());
  }
  std::vector<Order::iterator> added;
  for (auto& [end, chunk_frames] : by_end) {
    if (!IsWhole(codec, std::max(at, codec.recomputed_head_tokens), end, chunk_frames)) break;
    const absl::Span<const int32_t> tokens = prompt.subspan(at, end - at);
    const auto known = FindChunk(before, tokens, absl::InfinitePast());
    if (known != chunks_.end() && known->tokens.size() == tokens.size()) {
      known->added = MonotonicNow();
      added.push_back(known);  // another run was faster, or it was too old for this one
    } else {
      const size_t bytes = Weight(tokens, chunk_frames);
      chunks_.push_front({before,
                          {tokens.begin(), tokens.end()},
                          std::make_shared<const std::vector<CachedFrame>>(std::move(chunk_frames)),
                          bytes,
                          MonotonicNow()});
      by_before_.emplace(before, chunks_.begin());
      added.push_back(chunks_.begin());
      stats_.bytes += bytes;
    }
    before = Extend(before, tokens);
    at = end;
  }
  for (auto chunk = added.rbegin(); chunk != added.rend(); ++chunk) {
    chunks_.splice(chunks_.begin(), chunks_, *chunk);
  }
  Evict();
}

void FrameCache::Clear() {
  absl::MutexLock lock(&mutex_);
  by_before_.clear();
  chunks_.clear();
  stats_.bytes = 0;
}

void FrameCache::Evict() {
  while (stats_.bytes > max_bytes_) {
    const auto last = std::prev(chunks_.end());
    const auto [first, end] = by_before_.equal_range(last->before);
    by_before_.erase(std::find_if(first, end, [last](const auto& entry) { return entry.second == last; }));
    stats_.bytes -= last->bytes;
    ++stats_.evictions;
    chunks_.erase(last);
  }
}

FrameCache::Stats FrameCache::stats() const {
  absl::MutexLock lock(&mutex_);
  Stats stats = stats_;
  stats.chunks = chunks_.size();
  return stats;
}

}  // namespace aludel
