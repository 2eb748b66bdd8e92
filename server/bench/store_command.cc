#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_format.h"
#include "absl/types/span.h"
#include "runtime/status_macros.h"
#include "runtime/tool/flag_set.h"
#include "runtime/tool/progress.h"
#include "server/bench/commands.h"
#include "server/store/prefix_store.h"
#include "transport/monotonic_clock.h"

namespace aludel {
namespace {

constexpr char kUsage[] =
    R"(aludel-bench store fills a prefix store in memory and says what a look-up of a prompt takes: of prompts that are
stored whole, that share a beginning with one, and that are not there; and of prompts that are stored whole under the other of two
salts, which is to take what those take that are not there. With --lengths N it holds as many chunks again,
each the first and only one of a prompt, of 1 to N tokens; half of them begin with the same N/2 tokens. "longest" looks
up prompts that begin with one of them.

  aludel-bench store --entries 1000000
  aludel-bench store --entries 1000000 --chunk-tokens 512 --chunks 64
  aludel-bench store --entries 500000 --lengths 2048)";

struct Flags {
  int64_t entries = 1000000;
  int64_t chunk_tokens = 256;
  int64_t chunks = 16;
  int64_t lengths = 0;
  int64_t lookups = 20000;
  bool lru = false;
};

CodecSpec Format() { return {.name = "bench", .shipped_layers = {true}}; }

// The same tokens for the same seed.
std::vector<int32_t> Prompt(uint64_t seed, int64_t tokens) {
  std::mt19937_64 random(seed);
  std::vector<int32_t> prompt(static_cast<size_t>(tokens));
  for (int32_t& token : prompt) token = static_cast<int32_t>(random() % 100000);
  return prompt;
}

void Print(const char* name, std::vector<double>* seconds) {
  std::sort(seconds->begin(), seconds->end());
  const auto at = [&](double share) {
    return 1e6 * (*seconds)[static_cast<size_t>(share * static_cast<double>(seconds->size() - 1))];
  };
  absl::PrintF("%-10s p50 %7.1f us  p99 %7.1f us  p99.9 %7.1f us  max %7.1f us\n", name, at(0.5), at(0.99),
               at(0.999), seconds->back() * 1e6);
}

absl::Status PutChunk(PrefixStore& store, absl::Span<const int32_t> prompt, int64_t end, StorePosition* at) {
  std::vector<StoredFrame> frames;
  const auto begin = static_cast<uint32_t>(at->tokens);
  frames.push_back({{0, 1, 0, begin, static_cast<uint32_t>(end) - begin}, std::vector<uint8_t>(16)});
  return store.Put(prompt, end, std::move(frames), at) ? absl::OkStatus()
                                                       : absl::InternalError("the store took no chunk");
}

// Every other prompt is of the second tenant.
std::string SaltOf(uint64_t prompt) { return prompt % 2 == 0 ? "" : "other"; }

constexpr uint64_t kSharedSeed = uint64_t{1} << 40;

// A prompt that is one chunk: of 1 to `lengths` tokens, or of as many as `shared` and up to so many more.
std::vector<int32_t> OneChunk(uint64_t i, int64_t lengths, absl::Span<const int32_t> shared) {
  const bool shares = i % 2 == 1;
  const int64_t most = shares ? lengths - static_cast<int64_t>(shared.size()) : lengths;
  const int64_t own = 1 + static_cast<int64_t>(i / 2) % most;
  std::vector<int32_t> prompt = Prompt(kSharedSeed + 1 + i, own);
  prompt.back() = static_cast<int32_t>(i);
  if (shares) prompt.insert(prompt.begin(), shared.begin(), shared.end());
  return prompt;
}

// Fills the store with prompts of one chunk, and says what looking up a longer one takes.
absl::Status RunLengths(const Flags& flags, PrefixStore& store) {
  const std::vector<int32_t> shared = Prompt(kSharedSeed, flags.lengths / 2);
  ProgressBar bar;
  for (int64_t i = 0; i < flags.entries; ++i) {
    if (i % 1000 == 0) bar.Update("chunks", i, flags.entries);
    const std::vector<int32_t> prompt = OneChunk(static_cast<uint64_t>(i), flags.lengths, shared);
    StorePosition at = store.Begin(Format(), "");
    ALUDEL_RETURN_IF_ERROR(PutChunk(store, prompt, static_cast<int64_t>(prompt.size()), &at));
  }
  bar.Break();
  absl::PrintF("%d entries, of which %d begin a prompt with 1 to %d tokens\n", store.stats().memory.entries,
               flags.entries, flags.lengths);
  std::mt19937_64 random(2);
  std::vector<double> seconds;
  for (int64_t i = 0; i < flags.lookups; ++i) {
    const uint64_t which = random() % static_cast<uint64_t>(flags.entries);
    std::vector<int32_t> prompt = OneChunk(which, flags.lengths, shared);
    const auto want = static_cast<int64_t>(prompt.size());
    prompt.resize(static_cast<size_t>(flags.lengths) + 1, -1);
    const absl::Time begun = MonotonicNow();
    StorePosition at = store.Begin(Format(), "");
    const std::vector<StoredChunk> found = store.Find(prompt, absl::InfiniteDuration(), &at);
    seconds.push_back(absl::ToDoubleSeconds(MonotonicNow() - begun));
    if (found.size() != 1 || at.tokens != want) return absl::InternalError("a look-up found something else");
  }
  Print("longest", &seconds);
  return absl::OkStatus();
}

absl::Status Run(const Flags& flags) {
  PrefixStore store({.producer = "bench",
                     .memory_bytes = size_t{1} << 40,
                     .eviction = flags.lru ? PrefixStore::Eviction::kLru : PrefixStore::Eviction::kUtility});
  const int64_t tokens = flags.chunk_tokens * flags.chunks;
  const int64_t prompts = std::max<int64_t>(1, flags.entries / flags.chunks);
  ProgressBar bar;
  for (int64_t i = 0; i < prompts; ++i) {
    if (i % 1000 == 0) bar.Update("prompts", i, prompts);
    const std::vector<int32_t> prompt = Prompt(static_cast<uint64_t>(i), tokens);
    StorePosition at = store.Begin(Format(), SaltOf(static_cast<uint64_t>(i)));
    for (int64_t end = flags.chunk_tokens; end <= tokens; end += flags.chunk_tokens) {
      ALUDEL_RETURN_IF_ERROR(PutChunk(store, prompt, end, &at));
    }
  }
  bar.Break();
  absl::PrintF("%d entries, prompts of %d tokens in %d chunks\n", store.stats().memory.entries, tokens,
               flags.chunks);
  std::mt19937_64 random(1);
  double absent_seconds = 0;
  for (const char* kind : {"whole", "beginning", "absent", "other salt"}) {
    std::vector<double> seconds;
    for (int64_t i = 0; i < flags.lookups; ++i) {
      const uint64_t which = random() % static_cast<uint64_t>(prompts);
      std::vector<int32_t> prompt = Prompt(which, tokens);
      if (kind[0] == 'b') prompt[prompt.size() / 2] = -1;
      if (kind[0] == 'a') prompt[0] = -1;
      const std::string salt = SaltOf(kind[0] == 'o' ? which + 1 : which);
      const absl::Time begun = MonotonicNow();
      StorePosition at = store.Begin(Format(), salt);
      const std::vector<StoredChunk> found = store.Find(prompt, absl::InfiniteDuration(), &at);
      seconds.push_back(absl::ToDoubleSeconds(MonotonicNow() - begun));
      const size_t want = kind[0] == 'w'   ? static_cast<size_t>(flags.chunks)
                          : kind[0] == 'b' ? static_cast<size_t>(flags.chunks) / 2
                                           : 0;
      if (found.size() != want) return absl::InternalError("a look-up found something else");
    }
    Print(kind, &seconds);
    const double median = seconds[seconds.size() / 2];
    if (kind[0] == 'a') absent_seconds = median;
    if (kind[0] == 'o') absl::PrintF("other salt over absent, p50: %.3f\n", median / absent_seconds);
  }
  return flags.lengths == 0 ? absl::OkStatus() : RunLengths(flags, store);
}

}  // namespace

absl::Status StoreCommand(int argc, char** argv) {
  Flags values;
  FlagSet flags(kUsage);
  flags.Add("entries", "N", &values.entries, "chunks in the store");
  flags.Add("chunk-tokens", "N", &values.chunk_tokens, "tokens of each");
  flags.Add("chunks", "N", &values.chunks, "of a prompt");
  flags.Add("lengths", "N", &values.lengths, "as many chunks again, of 1 to N tokens; 0: none");
  flags.Add("lookups", "N", &values.lookups, "of each kind");
  flags.Add("lru", &values.lru, "what was used least recently goes first, in place of what is worth least");
  ALUDEL_RETURN_IF_ERROR(flags.Parse(argc, argv));
  if (flags.help_asked()) {
    std::fputs(flags.Help().c_str(), stdout);
    return absl::OkStatus();
  }
  if (values.entries < 1 || values.chunk_tokens < 1 || values.chunks < 1 || values.lengths < 0 ||
      values.lookups < 1) {
    return absl::InvalidArgumentError("counts are at least 1");
  }
  return Run(values);
}

}  // namespace aludel
