// What one routing decision costs at a fleet of any size.

#include <time.h>

#include <algorithm>
#include <cstdio>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "runtime/tool/flag_set.h"
#include "server/gateway/routing/policy/fleet.h"

namespace aludel {
namespace {

constexpr char kUsage[] =
    R"(routing_bench measures what a gateway pays for one routing decision (keys of the prompt apart): conversations
that grow, under a load that makes some of them spill, with reports of all replicas coming in between. With --known the replicas
tell what their caches hold, as they do by default; what they tell comes between the decisions and is not timed.
The row "fixed" is of work between the decisions that is always the same: how much longer its slowest hundredth takes than
its median is the machine's doing, and in the decisions' figures, too. So all of it is done --passes times, the same decisions
in the same order: the rows "least" are of the shortest of each decision's times, which leave out what came in between in one
pass and not in another.

  build/release/bin/routing_bench --replicas 1000)";

struct Times {
  std::vector<double> keys, decision, fixed;  // microseconds
};

// Of this thread's processor time: what else the machine does is not the decision's.
double Micros() {
  timespec time = {};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) * 1e6 + static_cast<double>(time.tv_nsec) / 1e3;
}

// Arithmetic alone, about as long as a decision at a thousand servers.
uint64_t FixedWork(uint64_t value) {
  for (int i = 0; i < 10'000; ++i) value = MixBits(value + 1);
  return value;
}

// What a server tells once it has computed the prompt.
std::vector<KeyChange> Told(const PrefixKeys& keys) {
  std::vector<KeyChange> told;
  for (size_t i = 0; i < keys.blocks.size(); ++i) {
    const auto end = static_cast<int64_t>(i + 1) * kKeyTokens;
    told.push_back({keys.blocks[i], IsPrefixEnd(end) ? KeyChange::kPrefixEnd : uint8_t{0}});
  }
  return told;
}

Times Measure(int64_t replicas, int64_t requests, int64_t prompt_tokens, bool known) {
  std::mt19937_64 random(1);
  Fleet fleet({});
  for (int64_t i = 0; i < replicas; ++i) {
    fleet.Add(absl::StrCat("decode-", i, ":7200"));
    if (known) fleet.CacheKnown(static_cast<size_t>(i), {}, kKeyTokens);
  }
  std::vector<std::vector<int32_t>> conversations(static_cast<size_t>(4 * replicas));
  Times times;
  double now = 0;
  volatile uint64_t fixed = 0;  // so that it is computed
  for (int64_t i = 0; i < requests; ++i) {
    now += 0.2 / static_cast<double>(replicas);
    if (i % replicas == 0) {
      for (int64_t slot = 0; slot < replicas; ++slot) {
        fleet.Report(static_cast<size_t>(slot),
                     {.waiting_seconds = static_cast<double>(random() % 3000) / 1e3,
                      .running = static_cast<int>(random() % 30),
                      .places = 64,
                      .cache_tokens = 500'000,
                      .age_seconds = slot % 50 == 0 ? 10.0 : 1000.0},
                     now);
      }
    }
    std::vector<int32_t>& prompt = conversations[random() % conversations.size()];
    if (static_cast<int64_t>(prompt.size()) > prompt_tokens) prompt.clear();
    if (prompt.empty()) prompt.assign(1024, 7);  // a system prompt that all share
    for (int64_t token = prompt_tokens / 4; token > 0; --token)
      prompt.push_back(static_cast<int32_t>(random() % 32000));
    double begin = Micros();
    const PrefixKeys keys = MakePrefixKeys({1}, prompt, known);
    times.keys.push_back(Micros() - begin);
    begin = Micros();
    const auto ready = [](size_t) { return ReplicaView::Standing::kReady; };
    const RoutingDecision decision = fleet.Choose(keys, ready, now);
    const size_t slot = *decision.replica;
    fleet.Sent(slot, keys, fleet.ExpectedPrefill(slot, keys.tokens), now);
    times.decision.push_back(Micros() - begin);
    fleet.Ended(slot, Fleet::Outcome::kServed, now);
    if (known) fleet.CacheChanged(slot, Told(keys));
    begin = Micros();
    fixed = FixedWork(fixed);
    times.fixed.push_back(Micros() - begin);
  }
  return times;
}

void KeepLeast(const std::vector<double>& times, std::vector<double>* least) {
  for (size_t i = 0; i < times.size(); ++i) (*least)[i] = std::min((*least)[i], times[i]);
}

void Print(const char* what, std::vector<double> microseconds) {
  std::sort(microseconds.begin(), microseconds.end());
  const auto at = [&](double share) {
    return microseconds[static_cast<size_t>(share * static_cast<double>(microseconds.size() - 1))];
  };
  absl::PrintF("%-15s p50 %6.1f   p90 %6.1f   p99 %6.1f   max %8.1f us\n", what, at(.5), at(.9), at(.99),
               at(1));
}

int Main(int argc, char** argv) {
  int64_t replicas = 1000, requests = 100'000, prompt_tokens = 8192, passes = 3;
  bool known = false;
  FlagSet flags(kUsage);
  flags.Add("replicas", "N", &replicas, "of the fleet");
  flags.Add("requests", "N", &requests, "to route");
  flags.Add("prompt-tokens", "N", &prompt_tokens, "that a conversation grows to");
  flags.Add("passes", "N", &passes, "over the same decisions");
  flags.Add("known", &known, "servers tell what their caches hold");
  const absl::Status status = flags.Parse(argc, argv);
  if (!status.ok() || replicas < 1 || requests < 1 || prompt_tokens < 4 || passes < 1) {
    absl::FPrintF(stderr, "routing_bench: %s\n",
                  status.ok() ? "numbers want to be positive" : status.message());
    return 2;
  }
  if (flags.help_asked()) {
    std::fputs(flags.Help().c_str(), stdout);
    return 0;
  }
  const Times times = Measure(replicas, requests, prompt_tokens, known);
  Print("keys", times.keys);
  Print("decision", times.decision);
  Print("fixed", times.fixed);
  Times least = times;
  for (int64_t pass = 1; pass < passes; ++pass) {
    const Times again = Measure(replicas, requests, prompt_tokens, known);
    KeepLeast(again.keys, &least.keys);
    KeepLeast(again.decision, &least.decision);
    KeepLeast(again.fixed, &least.fixed);
  }
  if (passes == 1) return 0;
  Print("least keys", least.keys);
  Print("least decision", least.decision);
  Print("least fixed", least.fixed);
  return 0;
}

}  // namespace
}  // namespace aludel

int main(int argc, char** argv) { return aludel::Main(argc, argv); }
