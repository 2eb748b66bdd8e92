#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <sys/socket.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <map>
#include <string>
#include <thread>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "server/rpc/cache_salt.h"
#include "tests/e2e/fleet.h"

namespace aludel {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr size_t kPrompts = 4;
constexpr char kHit[] = "aludel_store_lookups_total{result=\"hit\"}";
constexpr char kPartial[] = "aludel_store_lookups_total{result=\"partial\"}";
constexpr char kMiss[] = "aludel_store_lookups_total{result=\"miss\"}";
constexpr char kComputed[] = "aludel_engine_events_total{event=\"prompt_token\",model=\"base\"}";

FleetOptions Consumer(const std::string& model, int prefill_port = 0) {
  FleetOptions options;
  options.decode_model = absl::StrCat("deploy/demo/", model);
  options.codec = "artifact: 'deploy/demo/codec'";
  options.prefill_port = prefill_port;
  return options;
}

// base's adapter, which answers as JSON.
FleetOptions JsonConsumer(int prefill_port = 0) {
  FleetOptions options = Consumer("base", prefill_port);
  options.engine = "adapter: 'deploy/demo/json'";
  options.prefill_engine = "adapter: ''";
  return options;
}

Answer Ask(Fleet& fleet, const std::vector<int32_t>& prompt, const std::string& format) {
  const Answer answer = fleet.Ask(Fleet::Request(prompt, 12, format));
  EXPECT_TRUE(answer.status.ok()) << answer.status;
  EXPECT_EQ(answer.started.plan(), "remote") << answer.started.fallback_reason();
  return answer;
}

// The answer to a POST on a server's admin port, head and body.
std::string Post(int port, const std::string& path, const std::string& token, const std::string& body) {
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(static_cast<uint16_t>(port))};
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  std::string answer;
  if (connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0) {
    const std::string request =
        absl::StrCat("POST ", path, " HTTP/1.1\r\nHost: test\r\nConnection: close\r\nAuthorization: Bearer ",
                     token, "\r\nContent-Length: ", body.size(), "\r\n\r\n", body);
    EXPECT_EQ(write(fd, request.data(), request.size()), static_cast<ssize_t>(request.size()));
    char buffer[4096];
    for (ssize_t n; (n = read(fd, buffer, sizeof(buffer))) > 0;)
      answer.append(buffer, static_cast<size_t>(n));
  }
  close(fd);
  return answer;
}

// One prefill server for two fine-tunes: what chat asked for, json gets without a forward pass, and answers
// as if it had been computed for it.
TEST(PrefixStore, ServesASecondConsumerFromTheFirstOnesFrames) {
  const auto prompts = DemoPrompts(kPrompts);
  std::vector<Answer> fresh;
  {
    Fleet json(JsonConsumer());
    ASSERT_TRUE(json.Start());
    for (const auto& prompt : prompts) fresh.push_back(Ask(json, prompt, "aludel-p2"));
    EXPECT_EQ(json.prefill().Metric(kHit), 0);
  }
  Fleet chat(Consumer("chat"));
  ASSERT_TRUE(chat.Start());
  Fleet json(JsonConsumer(chat.prefill_port()));
  ASSERT_TRUE(json.Start());
  for (const auto& prompt : prompts) Ask(chat, prompt, "aludel-p2");
  const double computed = chat.prefill().Metric(kComputed);
  for (size_t i = 0; i < kPrompts; ++i) {
    const Answer answer = Ask(json, prompts[i], "aludel-p2");
    EXPECT_EQ(answer.tokens, fresh[i].tokens) << i;
    EXPECT_EQ(answer.started.payload_bytes(), fresh[i].started.payload_bytes()) << i;
  }
  EXPECT_EQ(chat.prefill().Metric(kHit), kPrompts);
  EXPECT_EQ(chat.prefill().Metric(kMiss), kPrompts);
  EXPECT_EQ(chat.prefill().Metric(kComputed), computed);  // no forward pass since
  EXPECT_GT(chat.prefill().Metric("aludel_store_bytes{tier=\"memory\"}"), 0);

  // Another format's frames are others.
  Ask(chat, prompts[0], "scd");
  EXPECT_EQ(chat.prefill().Metric(kMiss), kPrompts + 1);
  EXPECT_TRUE(chat.PrefillIsIdle());
}

TEST(PrefixStore, SendsAKnownBeginningAndEncodesTheRest) {
  Fleet fleet(Consumer("chat"));
  ASSERT_TRUE(fleet.Start());
  std::vector<int32_t> prompt;
  for (const auto& part : DemoPrompts(3)) prompt.insert(prompt.end(), part.begin(), part.end());
  prompt.resize(600);  // two whole chunks of 256, and a rest
  std::vector<int32_t> other = prompt;
  other[540] = prompt[2];
  const Answer fresh = Ask(fleet, prompt, "scd");
  const Answer answer = Ask(fleet, other, "scd");  // shares the two whole chunks
  EXPECT_EQ(fleet.prefill().Metric(kPartial), 1);
  EXPECT_EQ(fleet.prefill().Metric("aludel_store_hit_tokens_total{tier=\"memory\"}"), 512);
  EXPECT_EQ(answer.started.payload_bytes(), fresh.started.payload_bytes());
  // The whole of it is known now; what was put together from both answers alike.
  const Answer again = Ask(fleet, other, "scd");
  EXPECT_EQ(fleet.prefill().Metric(kHit), 1);
  EXPECT_EQ(again.tokens, answer.tokens);
  // Unless the client wants nothing from a cache.
  v1::GenerateRequest strict = Fleet::Request(other, 12, "scd");
  strict.set_max_staleness_ms(0);
  EXPECT_EQ(fleet.Ask(strict).tokens, answer.tokens);
  EXPECT_EQ(fleet.prefill().Metric(kHit), 1);
  EXPECT_EQ(fleet.prefill().Metric(kMiss), 2);
  Fleet uncached(Consumer("chat"));
  ASSERT_TRUE(uncached.Start());
  EXPECT_EQ(Ask(uncached, other, "scd").tokens, answer.tokens);
}

// The others wait for the first one's chunks.
TEST(PrefixStore, ParallelRequestsOfOneNewPrefixEncodeItOnce) {
  constexpr size_t kParallel = 10;
  FleetOptions options = Consumer("chat");
  options.max_num_seqs = 16;
  options.kv_blocks = 1024;
  Fleet fleet(options);
  ASSERT_TRUE(fleet.Start());
  std::vector<int32_t> prompt;
  for (const auto& part : DemoPrompts(3)) prompt.insert(prompt.end(), part.begin(), part.end());
  prompt.resize(550);
  const auto ask_all = [&](const std::vector<std::vector<int32_t>>& prompts) {
    std::vector<Answer> answers(prompts.size());
    std::vector<std::thread> threads;
    for (size_t i = 0; i < prompts.size(); ++i) {
      threads.emplace_back([&, i] { answers[i] = Ask(fleet, prompts[i], "scd"); });
    }
    for (std::thread& thread : threads) thread.join();
    return answers;
  };
  const double computed = fleet.prefill().Metric(kComputed);
  const std::vector<Answer> answers = ask_all(std::vector<std::vector<int32_t>>(kParallel, prompt));
  for (const Answer& answer : answers) EXPECT_EQ(answer.tokens, answers[0].tokens);
  EXPECT_EQ(fleet.prefill().Metric(kMiss), 1);
  EXPECT_EQ(fleet.prefill().Metric(kHit), kParallel - 1);
  EXPECT_LE(fleet.prefill().Metric(kComputed) - computed, prompt.size());

  // Of prompts that only begin alike, each is computed from where it differs. (The server takes four at a time.)
  constexpr size_t kTails = 4;
  std::vector<std::vector<int32_t>> tails(kTails, prompt);
  for (size_t i = 0; i < kTails; ++i) {
    tails[i][0] = prompt[1];
    tails[i][540] = static_cast<int32_t>(100 + i);
  }
  ask_all(tails);
  EXPECT_EQ(fleet.prefill().Metric(kMiss), 2);
  EXPECT_EQ(fleet.prefill().Metric(kPartial), kTails - 1);
  EXPECT_TRUE(fleet.PrefillIsIdle());
}

// Whether it was stopped or killed, the server finds on disk what it had: no prompt is computed again.
TEST(PrefixStore, ARestartedServerHasTheHitsThatItHad) {
  const std::string directory = absl::StrCat(::testing::TempDir(), "/store-e2e-", getpid());
  std::filesystem::remove_all(directory);
  FleetOptions options = Consumer("chat");
  options.prefill = absl::StrCat("store { disk { path: '", directory, "' bytes: 67108864 } }");
  Fleet fleet(options);
  ASSERT_TRUE(fleet.Start());
  const auto prompts = DemoPrompts(kPrompts);
  std::vector<Answer> fresh;
  for (const auto& prompt : prompts) fresh.push_back(Ask(fleet, prompt, "aludel-p0"));
  const double entries = fleet.prefill().Metric("aludel_store_entries{tier=\"memory\"}");
  ASSERT_GE(entries, kPrompts);
  ASSERT_TRUE(fleet.prefill().WaitMetric("aludel_store_entries{tier=\"disk\"}", entries));
  for (const int signal : {SIGTERM, SIGKILL}) {
    fleet.prefill().Signal(signal);
    ASSERT_NE(fleet.prefill().WaitExit(), -1);
    ASSERT_TRUE(fleet.WaitPrefillState("down"));
    ASSERT_TRUE(fleet.StartPrefill());
    ASSERT_TRUE(fleet.WaitPrefillState("ready"));
    EXPECT_EQ(fleet.prefill().Metric("aludel_store_open{tier=\"disk\"}"), 1);
    EXPECT_EQ(fleet.prefill().Metric("aludel_store_entries{tier=\"disk\"}"), entries);
    const double computed = fleet.prefill().Metric(kComputed);
    for (size_t i = 0; i < kPrompts; ++i) {
      const Answer answer = Ask(fleet, prompts[i], "aludel-p0");
      EXPECT_EQ(answer.tokens, fresh[i].tokens) << i;
    }
    EXPECT_EQ(fleet.prefill().Metric(kHit), kPrompts);
    EXPECT_EQ(fleet.prefill().Metric(kComputed), computed) << "a forward pass";
    EXPECT_GT(fleet.prefill().Metric("aludel_store_hit_tokens_total{tier=\"disk\"}"), 0);
  }
  EXPECT_TRUE(fleet.PrefillIsIdle());
  std::filesystem::remove_all(directory);
}

// What both servers do for a request, by their counters.
std::map<std::string, double> DeedsOf(Fleet& fleet) {
  std::map<std::string, double> deeds;
  for (const char* name :
       {kHit, kPartial, kMiss, kComputed, "aludel_store_hit_tokens_total{tier=\"memory\"}",
        "aludel_store_hit_tokens_total{tier=\"disk\"}", "aludel_store_loads_total",
        "aludel_store_entries{tier=\"memory\"}", "aludel_prefix_cache_hits_total{model=\"base\"}",
        "aludel_prefix_cache_queries_total{model=\"base\"}"}) {
    deeds[absl::StrCat("prefill: ", name)] = fleet.prefill().Metric(name);
  }
  for (const char* name :
       {"aludel_prefix_cache_hits_total{model=\"demo\"}", "aludel_prefix_cache_queries_total{model=\"demo\"}",
        "aludel_engine_events_total{event=\"prompt_token\",model=\"demo\"}"}) {
    deeds[absl::StrCat("decode: ", name)] = fleet.decode().Metric(name);
  }
  return deeds;
}

// With its prompt in every place that the other salt's requests left it: memory, the disk of a server that was started
// again, and the decode server's prefix cache.
TEST(PrefixStore, ARequestOfAnotherSaltDoesWhatAMissDoes) {
  const std::string directory = absl::StrCat(::testing::TempDir(), "/store-salts-", getpid());
  std::filesystem::remove_all(directory);
  FleetOptions options = Consumer("chat");
  options.prefix_cache = true;
  options.prefill = absl::StrCat("store { disk { path: '", directory, "' bytes: 67108864 } }");
  Fleet fleet(options);
  ASSERT_TRUE(fleet.Start());
  const std::vector<int32_t> stored = DemoPrompts(1)[0];
  int others = 0;
  // A prompt that was never asked for, as long as the stored one.
  const auto unknown = [&] {
    std::vector<int32_t> prompt = stored;
    std::swap(prompt[0], prompt[static_cast<size_t>(++others)]);
    return prompt;
  };
  using Deeds = std::map<std::string, double>;
  const auto deeds_of = [&](const std::vector<int32_t>& prompt, const std::string& tenant,
                            bool anew = false) {
    const Deeds before = DeedsOf(fleet);
    v1::GenerateRequest request = Fleet::Request(prompt, 2, "aludel-p2");
    request.set_cache_salt(MakeCacheSalt(tenant, ""));
    if (anew) request.set_max_staleness_ms(1 << 30);  // not from the decode server's cache
    const Answer answer = fleet.Ask(request);
    EXPECT_TRUE(answer.status.ok()) << answer.status;
    // How many bytes the codes have depends on the prompt's text.
    Deeds deeds = {{"bytes were received", answer.started.payload_bytes() > 0 ? 1 : 0},
                   {"cached tokens", answer.started.cached_tokens()},
                   {"stored tokens", answer.finished.stored_tokens()},
                   {"remote", answer.started.plan() == "remote" ? 1 : 0}};
    for (const auto& [name, count] : DeedsOf(fleet)) deeds[name] = count - before.at(name);
    return deeds;
  };
  const auto expect_miss = [&](const std::string& tenant) {
    const Deeds miss = deeds_of(unknown(), tenant);
    EXPECT_EQ(deeds_of(stored, tenant), miss) << tenant;
    EXPECT_EQ(miss.at(absl::StrCat("prefill: ", kMiss)), 1);
    EXPECT_EQ(miss.at("cached tokens") + miss.at("stored tokens"), 0);
    EXPECT_GT(miss.at(absl::StrCat("prefill: ", kComputed)), 0);
  };
  deeds_of(stored, "alice");
  expect_miss("bob");
  EXPECT_GT(deeds_of(stored, "alice").at("cached tokens"), 0);
  EXPECT_EQ(
      deeds_of(stored, "alice", /*anew=*/true).at("prefill: aludel_store_hit_tokens_total{tier=\"memory\"}"),
      stored.size() - 1);

  fleet.prefill().Signal(SIGTERM);
  ASSERT_NE(fleet.prefill().WaitExit(), -1);
  ASSERT_TRUE(fleet.WaitPrefillState("down"));
  ASSERT_TRUE(fleet.StartPrefill());
  ASSERT_TRUE(fleet.WaitPrefillState("ready"));
  expect_miss("carol");
  EXPECT_EQ(fleet.prefill().Metric("aludel_store_loads_total"), 0);
  EXPECT_EQ(
      deeds_of(stored, "alice", /*anew=*/true).at("prefill: aludel_store_hit_tokens_total{tier=\"disk\"}"),
      stored.size() - 1);
  std::filesystem::remove_all(directory);
}

TEST(PrefixStore, ObeysAnOperatorWithTheToken) {
  FleetOptions options = Consumer("chat");
  // Of "operator".
  options.prefill =
      "store { memory_bytes: 67108864 control_token_sha256: "
      "'06e55b633481f7bb072957eabcf110c972e86691c3cfedabe088024bffe42f23' }";
  Fleet fleet(options);
  ASSERT_TRUE(fleet.Start());
  const auto prompts = DemoPrompts(1);
  const auto ask = [&](const std::string& salt) {
    v1::GenerateRequest request = Fleet::Request(prompts[0], 2, "aludel-p2");
    request.set_cache_salt(salt);
    return fleet.Ask(request).finished.stored_tokens();
  };
  const std::string known = MakeCacheSalt("alice", "");
  for (const std::string& salt : {known, MakeCacheSalt("bob", "")}) {
    EXPECT_EQ(ask(salt), 0u);
    EXPECT_EQ(ask(salt), prompts[0].size() - 1);
  }
  const int port = fleet.prefill().admin_port();
  EXPECT_THAT(Post(port, "/store/clear", "another", "{\"all\": true}"), StartsWith("HTTP/1.1 401 "));
  EXPECT_EQ(ask(known), prompts[0].size() - 1);
  EXPECT_THAT(Post(port, "/store/clear", "operator", "{\"key\": \"alice\"}"), StartsWith("HTTP/1.1 200 "));
  EXPECT_EQ(ask(MakeCacheSalt("bob", "")), prompts[0].size() - 1) << "another tenant's";
  const std::string tenants = Post(port, "/store/tenants", "operator", "");
  EXPECT_THAT(tenants, HasSubstr("memory_bytes"));
  EXPECT_THAT(Post(port, "/store/list", "operator", "{\"key\": \"alice\"}"), HasSubstr("\"chunks\":[]"));
}

// Without the setting there is nothing to ask.
TEST(PrefixStore, ObeysNoOperatorWithoutOne) {
  Fleet fleet(Consumer("chat"));
  ASSERT_TRUE(fleet.Start());
  EXPECT_THAT(Post(fleet.prefill().admin_port(), "/store/tenants", "operator", ""),
              StartsWith("HTTP/1.1 404 "));
}

}  // namespace
}  // namespace aludel
