#include "server/inspect/size_search.h"

#include <sys/wait.h>

#include <array>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <limits>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace aludel {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// Conversations of three turns over a system prompt, some long, as a trace and as its lines.
std::vector<TraceRequest> Conversations(int count, double seconds_between) {
  std::vector<TraceRequest> trace;
  for (int turn = 0; turn < 3; ++turn) {
    for (int i = 0; i < count; ++i) {
      TraceRequest request{.arrival = (turn * count + i) * seconds_between, .output_tokens = 40};
      request.blocks.push_back(0);
      const int blocks = (i % 4 == 0 ? 12 : 3) * (turn + 1);
      for (int block = 0; block < blocks; ++block) request.blocks.push_back(1000 * (i + 1) + block);
      request.input_tokens = kTraceBlock * static_cast<int64_t>(request.blocks.size());
      trace.push_back(request);
    }
  }
  return trace;
}

SizeOptions Options() { return {.objective = {.ttft = 2, .itl = 0.05, .share = 0.95}, .gateways = 1}; }

void Nothing() {}

double Within(const std::vector<SimRequest>& requests, const SizeOptions& options, int decode,
              const SimPrefill& prefill) {
  const SimResult run = Simulate(requests, {.replicas = decode,
                                            .gateways = options.gateways,
                                            .objective_seconds = options.objective.ttft,
                                            .costs = options.servers.costs,
                                            .prefill = prefill});
  double kept = 0;
  for (size_t i = 0; i < requests.size(); ++i) {
    kept += run.ttft[i] <= options.objective.ttft && run.itl[i] <= options.objective.itl;
  }
  return kept / static_cast<double>(requests.size());
}

TEST(SizeSearch, TheProposedServersKeepTheObjectiveAndOneLessDoesNot) {
  const std::vector<SimRequest> requests = ToSimRequests(Conversations(200, 0.02));
  SizeOptions options = Options();
  options.servers.prefill_speed = 3;
  options.objective.itl = 0.1;  // a step with a chunk of prefill is that long
  const SizeDemand demand = DemandOf(requests);
  const SizeFormat format{.name = "small", .bytes_per_token = 1e3, .compute_share = 0.2};
  const auto proposal = ProposeBest(
      requests, options, Balances(demand, options.servers, options.objective, format), format, Nothing);
  ASSERT_TRUE(proposal.ok()) << proposal.status();
  const SizeBalance& balance = proposal->balance;
  const int prefill = proposal->trial.prefill, decode = proposal->trial.decode;
  const auto within = [&](int prefill_servers, int decode_servers) {
    return Within(requests, options, decode_servers,
                  {.servers = prefill_servers,
                   .threshold_tokens = balance.threshold_tokens,
                   .speed = options.servers.prefill_speed,
                   .bytes_per_token = format.bytes_per_token,
                   .compute_share = format.compute_share});
  };
  EXPECT_GE(within(prefill, decode), options.objective.share);
  ASSERT_GT(prefill, 1);
  EXPECT_LT(within(prefill - 1, decode), options.objective.share);
  ASSERT_GT(decode, 1);
  EXPECT_LT(within(prefill, decode - 1), options.objective.share);
  EXPECT_EQ(proposal->one_decode_less, within(prefill, decode - 1));
  // The equations bound what is simulated.
  EXPECT_GE(prefill, balance.prefill());
  EXPECT_GE(decode, balance.decode);
}

TEST(SizeSearch, WithoutPrefillServersDecodeServersDoAll) {
  const std::vector<SimRequest> requests = ToSimRequests(Conversations(100, 0.1));
  SizeOptions options = Options();
  options.objective.itl = 0.1;  // a step with a chunk of prefill is that long
  const SizeBalance balance = BalanceAlone(DemandOf(requests), options.servers, options.objective);
  const auto proposal = ProposeSize(requests, options, balance, std::nullopt, Nothing);
  ASSERT_TRUE(proposal.ok()) << proposal.status();
  EXPECT_EQ(proposal->trial.prefill, 0);
  EXPECT_GE(Within(requests, options, proposal->trial.decode, {}), options.objective.share);
  EXPECT_LT(Within(requests, options, proposal->trial.decode - 1, {}), options.objective.share);
  for (const bool handed_over : proposal->trial.run.handed_over) EXPECT_FALSE(handed_over);
}

TEST(SizeSearch, SaysWhatNoNumberOfServersReaches) {
  const std::vector<SimRequest> requests = ToSimRequests(Conversations(20, 0.1));
  const SizeDemand demand = DemandOf(requests);
  SizeOptions options = Options();
  options.objective.ttft = 0.2;
  EXPECT_THAT(CheckReachable(demand, options, {}).message(),
              HasSubstr("take longer on a server of their own"));
  options = Options();
  options.objective.itl = 0.005;
  EXPECT_THAT(CheckReachable(demand, options, {}).message(), HasSubstr("itl=0.005s"));
  options = Options();
  options.most_servers = 2;
  const SizeBalance balance = BalanceAlone(demand, options.servers, options.objective);
  EXPECT_THAT(ProposeSize(ToSimRequests(Conversations(200, 0.05)), options, balance, std::nullopt, Nothing)
                  .status()
                  .message(),
              HasSubstr("decode servers keep the objective for"));
}

TEST(SizeSearch, AsManyPromptsMayBeLateAsTheShareLeaves) {
  SizeOptions options = Options();
  options.objective.share = 0.9;  // 1 - .9 is less than a tenth
  SizeDemand demand{.prompts = std::vector<SizeDemand::Prompt>(10, {.tokens = 100}), .seconds = 1};
  demand.prompts[0].tokens = 1'000'000;
  EXPECT_TRUE(CheckReachable(demand, options, {}).ok());
  demand.prompts[1].tokens = 1'000'000;
  EXPECT_FALSE(CheckReachable(demand, options, {}).ok());
}

TEST(SizeSearch, NoMoreServersAreTriedThanMayBe) {
  const std::vector<SimRequest> requests = ToSimRequests(Conversations(20, 0.1));
  SizeOptions options = Options();
  options.most_servers = 3;
  int tried = 0;
  (void)ProposeSize(requests, options, {.prefill_compute = 5, .decode = 60},
                    SizeFormat{.name = "small", .bytes_per_token = 1e3}, [&tried] { ++tried; });
  EXPECT_LT(tried, 10);
  options.most_servers = 0;
  for (const double busy : {1e5, 1e300, std::numeric_limits<double>::infinity(), std::nan("")}) {
    EXPECT_THAT(
        ProposeSize(requests, options, {.decode = busy}, std::nullopt, [] { FAIL(); }).status().message(),
        HasSubstr("want at most 10000"));
  }
}

TEST(SizeSearch, TheSeedIsTheSimulations) {
  const std::vector<SimRequest> requests = ToSimRequests(Conversations(100, 0.1));
  SizeOptions options = Options();
  options.gateways = 4;
  options.objective.itl = 0.1;  // a step with a chunk of prefill is that long
  const auto run = [&](uint64_t seed) {
    options.seed = seed;
    return ProposeSize(requests, options, {.decode = 4}, std::nullopt, Nothing)->trial.run.ttft;
  };
  EXPECT_EQ(run(1), run(1));
  EXPECT_NE(run(1), run(2));
}

struct Outcome {
  int code = -1;
  std::string text;
};

Outcome Size(const std::string& arguments) {
  const std::string command =
      absl::StrCat(ALUDEL_BIN_DIR, "/aludel-inspect size ", arguments, " 2>/dev/stdout");
  FILE* pipe = ::popen(command.c_str(), "r");
  Outcome outcome;
  std::array<char, 4096> buffer;
  while (const size_t got = std::fread(buffer.data(), 1, buffer.size(), pipe)) {
    outcome.text.append(buffer.data(), got);
  }
  const int status = ::pclose(pipe);
  outcome.code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  return outcome;
}

TEST(SizeCommand, PrintsAProposalForTheDemoPair) {
  const std::string path = ::testing::TempDir() + "/size_trace.jsonl";
  std::ofstream out(path);
  for (const TraceRequest& request : Conversations(60, 0.1)) {
    out << nlohmann::json({{"timestamp", request.arrival * 1e3},
                           {"input_length", request.input_tokens},
                           {"output_length", request.output_tokens},
                           {"hash_ids", request.blocks}})
               .dump()
        << "\n";
  }
  out.close();
  const std::string demo = absl::StrCat("--model deploy/demo/base --trace ", path);
  const Outcome text = Size(demo + " --codec deploy/demo/codec --objective ttft=3s,itl=50ms");
  ASSERT_EQ(text.code, 0) << text.text;
  EXPECT_THAT(text.text, AllOf(HasSubstr("decode servers"), HasSubstr("bottleneck"), HasSubstr("raw"),
                               HasSubstr("within objective")));
  const Outcome forced = Size(demo + " --json --prefill-speed 8 --format \"tiny 10 0\"");
  ASSERT_EQ(forced.code, 0) << forced.text;
  const auto report = nlohmann::json::parse(forced.text.substr(forced.text.find('{')));
  EXPECT_EQ(report["busy_servers_at_least"][1]["format"], "tiny");
  EXPECT_GE(report["simulated"]["within_objective"], 0.9);
  EXPECT_EQ(Size(demo + " --json --prefill-speed 8 --format \"\xff 10 0\"").code, 0);
  EXPECT_EQ(Size(demo + " --objective ttft=soon").code, 2);
  EXPECT_THAT(Size(demo + " --speed inf").text, HasSubstr("and finite"));
  EXPECT_THAT(Size("--model deploy/demo/base").text, HasSubstr("--trace is needed"));
  EXPECT_THAT(Size(demo + " --objective ttft=1ms").text, HasSubstr("take longer on a server of their own"));
  EXPECT_THAT(Size("--help").text, HasSubstr("--objective TEXT"));
}

}  // namespace
}  // namespace aludel
