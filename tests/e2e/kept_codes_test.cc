#include <gmock/gmock.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "aludel/v1/store.grpc.pb.h"
#include "grpcpp/create_channel.h"
#include "gtest/gtest.h"
#include "server/rpc/cache_salt.h"
#include "tests/e2e/fleet.h"

namespace aludel {
namespace {

constexpr int64_t kBlock = 4096;  // of a segment (FORMAT.md)
constexpr char kFormat[] = "aludel-p2";
constexpr char kStored[] = "aludel_plans_total{plan=\"stored\",reason=\"forced\"}";
constexpr char kReceived[] = "aludel_handoff_frames_total{direction=\"received\",format=\"aludel-p2\"}";
constexpr char kMemory[] = "aludel_store_entries{tier=\"memory\"}";
constexpr char kDisk[] = "aludel_store_entries{tier=\"disk\"}";
constexpr char kDiskHits[] = "aludel_store_hit_tokens_total{tier=\"disk\"}";

// A decode server that keeps what it receives, and nothing in its prefix cache.
class KeptCodesTest : public ::testing::Test {
 protected:
  KeptCodesTest() { std::filesystem::remove_all(directory_); }
  ~KeptCodesTest() override { std::filesystem::remove_all(directory_); }

  FleetOptions OnDisk() const {
    return Keeping(absl::StrCat("disk { path: '", directory_, "' bytes: 67108864 }"));
  }
  static FleetOptions Keeping(const std::string& store) {
    FleetOptions options;
    options.decode_model = "deploy/demo/chat";
    options.codec = "artifact: 'deploy/demo/codec'";
    options.decode = absl::StrCat("store { ", store, " }");
    return options;
  }
  static Answer Ask(Fleet& fleet, const std::vector<int32_t>& prompt, const std::string& plan,
                    const std::string& salt = "", const std::string& format = kFormat) {
    v1::GenerateRequest request = Fleet::Request(prompt, 12, format);
    request.set_cache_salt(salt);
    Answer answer = fleet.Ask(request);
    EXPECT_TRUE(answer.status.ok()) << answer.status;
    EXPECT_EQ(answer.started.plan(), plan) << answer.started.fallback_reason();
    return answer;
  }
  static void StopPrefill(Fleet& fleet) {
    fleet.prefill().Signal(SIGKILL);
    ASSERT_NE(fleet.prefill().WaitExit(), -1);
    ASSERT_TRUE(fleet.WaitPrefillState("down"));
  }
  static void RestartDecode(Fleet& fleet, int signal) {
    fleet.decode().Signal(signal);
    ASSERT_NE(fleet.decode().WaitExit(), -1);
    ASSERT_TRUE(fleet.StartDecode());
  }

  const std::string directory_ = absl::StrCat(::testing::TempDir(), "/kept-codes-", getpid());
};

TEST_F(KeptCodesTest, APromptThatWasHandedOverNeedsNoPrefillServerAlsoAfterARestart) {
  Fleet fleet(OnDisk());
  ASSERT_TRUE(fleet.Start());
  const auto prompts = DemoPrompts(3);
  std::vector<Answer> fresh;
  for (const auto& prompt : prompts) fresh.push_back(Ask(fleet, prompt, "remote"));
  // Stored when an answer has begun, a moment after its first token.
  const double entries = fleet.prefill().Metric(kMemory);
  ASSERT_GE(entries, prompts.size());
  ASSERT_TRUE(fleet.decode().WaitMetric(kMemory, entries));
  const auto as_fresh = [&] {
    for (size_t i = 0; i < prompts.size(); ++i) {
      const Answer again = Ask(fleet, prompts[i], "stored");
      EXPECT_EQ(again.tokens, fresh[i].tokens) << i;
      EXPECT_EQ(again.started.format(), kFormat);
      EXPECT_EQ(again.started.payload_bytes(), 0u) << "nothing was sent";
      EXPECT_EQ(again.started.handed_over_tokens(), fresh[i].started.handed_over_tokens());
      EXPECT_EQ(again.finished.stored_tokens(), prompts[i].size() - 1);
    }
    EXPECT_EQ(fleet.decode().Metric(kStored), prompts.size());
  };
  const double received = fleet.decode().Metric(kReceived);
  as_fresh();
  EXPECT_EQ(fleet.decode().Metric(kReceived), received);
  ASSERT_TRUE(fleet.decode().WaitMetric(kDisk, entries));
  StopPrefill(fleet);
  for (const int signal : {SIGTERM, SIGKILL}) {
    RestartDecode(fleet, signal);
    EXPECT_EQ(fleet.decode().Metric(kDisk), entries);
    as_fresh();
    EXPECT_GT(fleet.decode().Metric(kDiskHits), 0);
    EXPECT_EQ(fleet.decode().Metric("aludel_store_lookups_total{result=\"hit\"}"), prompts.size());
  }
  EXPECT_TRUE(fleet.DecodeIsIdle());
}

TEST_F(KeptCodesTest, TwoSaltsShareNothing) {
  Fleet fleet(Keeping("memory_bytes: 67108864"));
  ASSERT_TRUE(fleet.Start());
  const auto prompt = DemoPrompts(1)[0];
  const std::string alice = MakeCacheSalt("alice", "");
  const Answer fresh = Ask(fleet, prompt, "remote", alice);
  ASSERT_TRUE(fleet.decode().WaitMetric(kMemory, fleet.prefill().Metric(kMemory)));
  StopPrefill(fleet);
  for (const std::string& other : {MakeCacheSalt("bob", ""), MakeCacheSalt("alice", "mine"), std::string()}) {
    Ask(fleet, prompt, "local", other);
  }
  EXPECT_EQ(Ask(fleet, prompt, "stored", alice).tokens, fresh.tokens);
  Ask(fleet, prompt, "local", alice, "scd");  // another format's codes are others
}

// Nothing is kept of one that says so; what is kept is no answer to one that bounds its age, or wants an exact one.
TEST_F(KeptCodesTest, ObeysTheRequest) {
  Fleet fleet(Keeping("memory_bytes: 67108864"));
  ASSERT_TRUE(fleet.Start());
  const auto prompts = DemoPrompts(2);
  v1::GenerateRequest secret = Fleet::Request(prompts[0], 4, kFormat);
  secret.set_no_store(true);
  EXPECT_EQ(fleet.Ask(secret).started.plan(), "remote");
  const Answer fresh = Ask(fleet, prompts[1], "remote");
  const double entries = fleet.prefill().Metric(kMemory);
  ASSERT_GT(entries, 0);
  ASSERT_TRUE(fleet.decode().WaitMetric(kMemory, entries));
  EXPECT_EQ(fleet.Ask(secret).started.plan(), "remote");
  EXPECT_EQ(fleet.decode().Metric(kMemory), entries);
  v1::GenerateRequest young = Fleet::Request(prompts[1], 12, kFormat);
  young.set_max_staleness_ms(0);
  EXPECT_EQ(fleet.Ask(young).started.plan(), "remote");
  v1::GenerateRequest exact = Fleet::Request(prompts[1], 12, "");
  exact.set_fidelity(v1::FIDELITY_EXACT);
  EXPECT_EQ(fleet.Ask(exact).started.plan(), "local");

  // A longer prompt of which little is new: the rest is computed here.
  std::vector<int32_t> longer = prompts[1];
  longer.insert(longer.end(), {prompts[0][3], prompts[0][4], prompts[0][5]});
  const Answer more = Ask(fleet, longer, "stored");
  EXPECT_EQ(more.finished.stored_tokens(), prompts[1].size() - 1);

  const auto stub = v1::Decode::NewStub(grpc::CreateChannel(absl::StrCat("127.0.0.1:", fleet.decode_port()),
                                                            grpc::InsecureChannelCredentials()));
  grpc::ClientContext context;
  v1::ResetCacheResponse response;
  ASSERT_TRUE(stub->ResetCache(&context, {}, &response).ok());
  EXPECT_EQ(fleet.decode().Metric(kMemory), 0);
  EXPECT_EQ(Ask(fleet, prompts[1], "remote").tokens, fresh.tokens);
}

TEST_F(KeptCodesTest, ABitThatFlippedOnDiskIsAMiss) {
  Fleet fleet(OnDisk());
  ASSERT_TRUE(fleet.Start());
  const auto prompt = DemoPrompts(1)[0];
  const Answer fresh = Ask(fleet, prompt, "remote");
  const double entries = fleet.prefill().Metric(kMemory);
  ASSERT_GT(entries, 0);
  ASSERT_TRUE(fleet.decode().WaitMetric(kDisk, entries));
  fleet.decode().Signal(SIGTERM);
  ASSERT_NE(fleet.decode().WaitExit(), -1);
  int flipped = 0;
  for (const auto& file : std::filesystem::recursive_directory_iterator(directory_)) {
    if (!file.is_regular_file() || file.file_size() < size_t{3 * kBlock}) continue;
    std::fstream segment(file.path(), std::ios::in | std::ios::out | std::ios::binary);
    // The records end where the footer begins, which the file's end tells; the one chunk's begins behind the first block.
    uint32_t footer = 0;
    segment.seekg(static_cast<int64_t>(file.file_size()) - 12);
    segment.read(reinterpret_cast<char*>(&footer), sizeof(footer));
    const int64_t middle = (kBlock + footer * kBlock) / 2;
    segment.seekg(middle);
    const int byte = segment.get();
    segment.seekp(middle);
    segment.put(static_cast<char>(byte ^ 4));
    ++flipped;
  }
  ASSERT_EQ(flipped, 1);
  ASSERT_TRUE(fleet.StartDecode());
  ASSERT_TRUE(fleet.WaitPrefillState("ready"));
  ASSERT_EQ(fleet.decode().Metric(kDisk), entries);
  // A prefill server sends what could not be read; next time it is here again.
  const Answer again = fleet.Ask(Fleet::Request(prompt, 12, kFormat));
  ASSERT_TRUE(again.status.ok()) << again.status;
  EXPECT_EQ(again.tokens, fresh.tokens);
  EXPECT_GT(again.started.payload_bytes(), 0u);
  EXPECT_EQ(again.started.plan(), "remote");
  EXPECT_EQ(fleet.decode().Metric("aludel_store_failures_total{reason=\"damaged\"}"), 1);
  EXPECT_EQ(fleet.decode().Metric("aludel_replans_total{reason=\"data_loss\"}"), 1);
  ASSERT_TRUE(fleet.decode().WaitMetric(kMemory, entries));
  const Answer stored = Ask(fleet, prompt, "stored");
  EXPECT_EQ(stored.tokens, fresh.tokens);
  EXPECT_EQ(stored.started.payload_bytes(), 0u);
}

v1::GenerateRequest OfAgent(const std::vector<int32_t>& prompt, const std::string& agent,
                            const std::vector<std::string>& next = {}) {
  v1::GenerateRequest request = Fleet::Request(prompt, 2, kFormat);
  request.mutable_workflow()->set_id("flow");
  request.mutable_workflow()->set_agent(agent);
  for (const std::string& name : next) request.mutable_workflow()->add_next(name);
  return request;
}

// A memory of a few prompts, and a disk of all: the agent that comes next has its prompt in memory again before it asks.
TEST_F(KeptCodesTest, AWorkflowsNextAgentIsReadFromDiskBeforeItsTurn) {
  Fleet fleet(Keeping(absl::StrCat("memory_bytes: 65536 disk { path: '", directory_, "' bytes: 67108864 }")));
  ASSERT_TRUE(fleet.Start());
  const auto prompts = DemoPrompts(60);
  constexpr char kEvicted[] = "aludel_store_evictions_total{tier=\"memory\"}";
  constexpr char kLoaded[] = "aludel_store_workflow_chunks_total{result=\"loaded\"}";
  const auto ask = [&](const v1::GenerateRequest& request, const std::string& plan) {
    const Answer answer = fleet.Ask(request);
    EXPECT_TRUE(answer.status.ok()) << answer.status;
    EXPECT_EQ(answer.started.plan(), plan) << answer.started.fallback_reason();
    return answer;
  };
  // The prefill server has room for all.
  const auto await_written = [&] {
    return fleet.decode().WaitMetric(kDisk, fleet.prefill().Metric(kMemory));
  };
  const Answer first = ask(OfAgent(prompts[0], "writer"), "remote");
  ASSERT_TRUE(await_written());
  const double chunks = fleet.decode().Metric(kDisk);
  size_t others = 2;
  for (; others < prompts.size() && fleet.decode().Metric(kEvicted) < chunks + 1; ++others) {
    ask(Fleet::Request(prompts[others], 2, kFormat), "remote");
    ASSERT_TRUE(await_written());
  }
  ASSERT_LT(others, prompts.size()) << "they fill no memory";
  EXPECT_EQ(fleet.decode().Metric(kLoaded), 0);
  ask(OfAgent(prompts[1], "planner", {"critic", "writer"}), "remote");
  ASSERT_TRUE(fleet.decode().WaitMetric(kLoaded, chunks));
  const Answer again = ask(OfAgent(prompts[0], "writer"), "stored");
  EXPECT_EQ(again.tokens, first.tokens);
  EXPECT_EQ(fleet.decode().Metric(kDiskHits), 0);
}

TEST_F(KeptCodesTest, ObeysAnOperatorWithTheToken) {
  // Of "operator".
  Fleet fleet(
      Keeping("memory_bytes: 67108864 control_token_sha256: "
              "'06e55b633481f7bb072957eabcf110c972e86691c3cfedabe088024bffe42f23'"));
  ASSERT_TRUE(fleet.Start());
  const auto prompt = DemoPrompts(1)[0];
  const std::string alice = MakeCacheSalt("alice", "");
  Ask(fleet, prompt, "remote", alice);
  ASSERT_TRUE(fleet.decode().WaitMetric(kMemory, fleet.prefill().Metric(kMemory)));

  const auto stub = v1::StoreControl::NewStub(grpc::CreateChannel(
      absl::StrCat("127.0.0.1:", fleet.decode_port()), grpc::InsecureChannelCredentials()));
  v1::LookupRequest lookup;
  v1::LookupResponse stored;
  lookup.mutable_prompt()->mutable_tokens()->Add(prompt.begin(), prompt.end());
  lookup.mutable_prompt()->set_format(kFormat);
  lookup.mutable_prompt()->set_key("alice");
  grpc::ClientContext stranger;
  stranger.AddMetadata("authorization", "Bearer guess");
  EXPECT_EQ(stub->Lookup(&stranger, lookup, &stored).error_code(), grpc::StatusCode::UNAUTHENTICATED);
  grpc::ClientContext looking;
  looking.AddMetadata("authorization", "Bearer operator");
  ASSERT_TRUE(stub->Lookup(&looking, lookup, &stored).ok());
  EXPECT_EQ(stored.memory_tokens(), prompt.size() - 1);

  v1::ClearRequest clear;
  v1::ClearResponse cleared;
  clear.mutable_of()->set_key("alice");
  grpc::ClientContext clearing;
  clearing.AddMetadata("authorization", "Bearer operator");
  ASSERT_TRUE(stub->Clear(&clearing, clear, &cleared).ok());
  EXPECT_EQ(fleet.decode().Metric(kMemory), 0);
  Ask(fleet, prompt, "remote", alice);
}

}  // namespace
}  // namespace aludel
