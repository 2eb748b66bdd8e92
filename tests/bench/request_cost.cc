// What the worst of many requests costs, in two ways by turns. Chat bodies go through what they take in both
// servers (body, template, tokenizer, schema, masks), which is measured by stage. And whole requests for every
// route go over a connection to a gateway in this process; of those the costliest per byte are changed and tried
// again, a hill climb. Reports CPU seconds and memory, and what is far from the median per byte. Exits with 1 where
// a request breaks a bound that the servers rely on.
//   build/release/bin/request_cost --seed 1 --seconds 3600 --max-bytes 1000000 --save FOLDER

#include <algorithm>
#include <cstdio>
#include <iterator>
#include <map>
#include <random>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "runtime/tool/flag_set.h"
#include "server/gateway/openai/model/served_models.h"
#include "tests/bench/cost_tally.h"
#include "tests/bench/gateway_meter.h"
#include "tests/bench/request_bodies.h"
#include "tests/bench/stage_meter.h"
#include "tests/bench/whole_requests.h"

namespace aludel {
namespace {

// Of whole requests, those that are changes of costly ones.
constexpr double kChangedShare = 0.5;
// Larger ones are not kept to be changed: what is costly per byte is small, and memory is bounded.
constexpr size_t kMaxKeptBytes = 128 << 10;
// What one request may cost without a key, beside its own bytes.
constexpr double kSecondsWithoutKey = 0.010;
constexpr int64_t kBytesWithoutKey = 64 << 10;
// An answer stands in memory while it is made, as a whole, and on its way out. Those of open paths are this long
// (/metrics), whether they are sent or only asked for their length (HEAD).
constexpr int64_t kAnswerCopies = 3;
constexpr int64_t kOpenAnswerBytes = 64 << 10;
// What is remarkable is measured so often; the least counts, as a busy machine only adds.
constexpr int kMeasurements = 3;

std::string Broken(const WholeRequest& request, const WholeCost& cost, double slack) {
  if (!cost.fault.empty()) return cost.fault;
  if (!request.keyed) {
    if (cost.seconds > slack * kSecondsWithoutKey * request.times) return "takes over 10 ms without a key";
    const int64_t answer = std::max(kOpenAnswerBytes, static_cast<int64_t>(cost.answer_bytes));
    if (cost.peak_bytes > slack * (kBytesWithoutKey + kAnswerCopies * answer)) {
      return "takes over 64 KiB without a key, and its answer";
    }
  }
  if (cost.peak_bytes > (int64_t{256} << 20) + 200 * static_cast<int64_t>(cost.bytes)) {
    return absl::StrFormat("takes %d MB", cost.peak_bytes >> 20);
  }
  return "";
}

// The cost that `measure` finds, without what else the machine did.
template <typename Measure>
RequestCost LeastOf(const CostTally& tally, const Measure& measure) {
  RequestCost least = measure();
  for (int i = 1; i < kMeasurements && tally.IsRemarkable(least); ++i) {
    const RequestCost again = measure();
    if (least.broken.empty() || again.broken.empty()) least.broken.clear();
    if (again.seconds < least.seconds) least.detail = again.detail;
    least.seconds = std::min(least.seconds, again.seconds);
    least.peak_bytes = std::min(least.peak_bytes, again.peak_bytes);
  }
  return least;
}

// The costliest request of each kind, by one measure.
class Kept {
 public:
  void Offer(const WholeRequest& request, double measured) {
    const auto [at, fresh] = worst_.try_emplace(request.kind, measured, request);
    if (!fresh && measured > at->second.first) at->second = {measured, request};
  }
  bool empty() const { return worst_.empty(); }
  const WholeRequest& Draw(std::mt19937_64& random) const {
    return std::next(worst_.begin(), static_cast<int64_t>(random() % worst_.size()))->second.second;
  }

 private:
  std::map<std::string, std::pair<double, WholeRequest>> worst_;
};

class Search {
 public:
  Search(GatewayMeter* meter, uint64_t seed, size_t max_bytes)
      : meter_(*meter), requests_(seed, max_bytes), random_(seed) {}

  void Step(CostTally* tally, double slack) {
    const Kept& kept = random_() % 2 == 0 ? by_time_ : by_memory_;
    const bool changes = !kept.empty() && std::uniform_real_distribution<double>()(random_) < kChangedShare;
    const WholeRequest request =
        changes ? requests_.Change(kept.Draw(random_), kept.Draw(random_)) : requests_.Next();
    const RequestCost cost = LeastOf(*tally, [&] { return Measure(request, slack); });
    if (cost.bytes <= kMaxKeptBytes) {
      by_time_.Offer(request, cost.SecondsPerByte());
      by_memory_.Offer(request, cost.MemoryPerByte());
    }
    tally->Add(cost, request.Bytes("KEY"));
  }

 private:
  RequestCost Measure(const WholeRequest& request, double slack) {
    const WholeCost measured = meter_.Measure(request);
    return {.kind = request.kind,
            .bytes = measured.bytes,
            .seconds = measured.seconds,
            .peak_bytes = measured.peak_bytes,
            .detail = absl::StrCat(measured.status, request.keyed ? "" : " no key",
                                   request.times > 1 ? absl::StrCat(", ", request.times, " times") : ""),
            .broken = Broken(request, measured, slack)};
  }

  GatewayMeter& meter_;
  WholeRequests requests_;
  std::mt19937_64 random_;
  Kept by_time_, by_memory_;
};

struct Wanted {
  int64_t seed = 1;
  double seconds = 3;
  int64_t max_bytes = 1 << 20;
  std::string model = "deploy/demo/chat";
  int64_t worst = 12;
  double slack = 1;
  std::string save;
};

int Run(const Wanted& wanted) {
  const auto models = ServedModels::Load({{.name = "chat", .directory = wanted.model}});
  if (!models.ok()) {
    std::fprintf(stderr, "%s\n", models.status().ToString().c_str());
    return 2;
  }
  const auto gateway = GatewayMeter::Open(&*models);
  if (!gateway.ok()) {
    std::fprintf(stderr, "%s\n", gateway.status().ToString().c_str());
    return 2;
  }
  const auto seed = static_cast<uint64_t>(wanted.seed);
  const auto max_bytes = static_cast<size_t>(wanted.max_bytes);
  const double slack = wanted.slack;
  const auto stages = StageMeter::Open(models->Find("chat"));
  RequestBodies bodies(seed, max_bytes);
  Search search(gateway->get(), seed, max_bytes);
  CostTally of_stages("stages", wanted.save), of_gateway("gateway", wanted.save);
  const absl::Time end = absl::Now() + absl::Seconds(wanted.seconds);
  for (absl::Time told = absl::Now(); absl::Now() < end;) {
    const RequestBody body = bodies.Next();
    of_stages.Add(LeastOf(of_stages, [&] { return stages->Measure(body, slack); }), body.text);
    search.Step(&of_gateway, slack);
    if (absl::Now() < told + absl::Minutes(5)) continue;
    told = absl::Now();
    of_gateway.Print(3);
    std::fflush(stdout);
  }
  of_stages.Print(static_cast<int>(wanted.worst));
  of_gateway.Print(static_cast<int>(wanted.worst));
  return of_stages.broken() + of_gateway.broken() == 0 ? 0 : 1;
}

int Main(int argc, char** argv) {
  Wanted wanted;
  FlagSet flags("request_cost measures what the worst of many requests costs.");
  flags.Add("seed", "N", &wanted.seed, "of the requests");
  flags.Add("seconds", "S", &wanted.seconds, "how long to go on");
  flags.Add("max-bytes", "N", &wanted.max_bytes, "of a body, about");
  flags.Add("model", "DIR", &wanted.model, "a model with a chat template");
  flags.Add("worst", "N", &wanted.worst, "how many to list");
  flags.Add("slack", "X", &wanted.slack,
            "by how much the bounds are widened, for builds and machines that are slow");
  flags.Add("save", "DIR", &wanted.save, "for the worst requests");
  const absl::Status parsed = flags.Parse(argc, argv);
  if (const auto answer = flags.Answer()) {
    std::fputs(answer->c_str(), stdout);
    return 0;
  }
  if (!parsed.ok()) {
    std::fprintf(stderr, "request_cost: %s\n", std::string(parsed.message()).c_str());
    return 2;
  }
  return Run(wanted);
}

}  // namespace
}  // namespace aludel

int main(int argc, char** argv) { return aludel::Main(argc, argv); }
