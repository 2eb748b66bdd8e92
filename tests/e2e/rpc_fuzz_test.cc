// Every gRPC method of the prefill and decode servers, called with hostile messages (hostile_messages.h) and
// in hostile ways: cancelled in the midst, without a message, with two, with bytes that are none. Both servers
// stay alive and ready, answer a known request as before, and keep no block, ticket, frame memory or descriptor.
//   build/release/bin/rpc_fuzz_test --seconds 600 --seed 7
#include <dirent.h>

#include <algorithm>
#include <iostream>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "google/protobuf/descriptor.h"
#include "grpcpp/create_channel.h"
#include "grpcpp/generic/generic_stub.h"
#include "gtest/gtest.h"
#include "runtime/tool/flag_set.h"
#include "server/rpc/handoff_version.h"
#include "tests/e2e/fleet.h"
#include "tests/e2e/hostile_messages.h"
#include "transport/wire.h"

namespace aludel {
namespace {

double wanted_seconds = 8;
int64_t wanted_seed = 0;

using google::protobuf::Message;

constexpr int kCallers = 4;
constexpr int kCallsBetweenLooks = 400;
// Connections of gRPC and of the data plane come and go.
constexpr int kSpareDescriptors = 24;
constexpr size_t kMaxLineBytes = 4096;

struct Target {
  std::shared_ptr<grpc::Channel> channel;
  std::string method;
  std::shared_ptr<const Message> valid;
};

int OpenDescriptors(pid_t pid) {
  int count = 0;
  DIR* folder = opendir(absl::StrCat("/proc/", pid, "/fd").c_str());
  if (folder == nullptr) return -1;
  while (readdir(folder) != nullptr) ++count;
  closedir(folder);
  return count;
}

class RpcFuzz : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(fleet_.Start());
    const auto channel = [](int port) {
      return grpc::CreateChannel(absl::StrCat("127.0.0.1:", port), grpc::InsecureChannelCredentials());
    };
    AddService(v1::Prefill::service_full_name(), channel(fleet_.prefill_port()));
    AddService(v1::Decode::service_full_name(), channel(fleet_.decode_port()));
    // What the library serves beside.
    for (const auto& server : {channel(fleet_.prefill_port()), channel(fleet_.decode_port())}) {
      const auto any = std::make_shared<v1::DescribeRequest>();
      for (const char* method : {"/grpc.health.v1.Health/Check", "/grpc.health.v1.Health/Watch",
                                 "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
                                 "/aludel.v1.Decode/Nothing", "/"}) {
        targets_.push_back({server, method, any});
      }
    }
    for (int i = 0; i < 60; ++i) prompt_.push_back(10 + (i * 37) % 2000);
    known_ = Ask("raw");
    ASSERT_FALSE(known_.empty());
    ASSERT_EQ(known_, Ask(""));
  }

  // All its methods, so that a new one is called, too.
  void AddService(const std::string& name, const std::shared_ptr<grpc::Channel>& channel) {
    const auto* service = google::protobuf::DescriptorPool::generated_pool()->FindServiceByName(name);
    ASSERT_NE(service, nullptr) << name;
    for (int i = 0; i < service->method_count(); ++i) {
      const auto* method = service->method(i);
      targets_.push_back(
          {channel, absl::StrCat("/", name, "/", method->name()), Valid(method->input_type())});
    }
  }

  // A message that the method would take, or an empty one.
  std::shared_ptr<Message> Valid(const google::protobuf::Descriptor* type) const {
    std::shared_ptr<Message> message(
        google::protobuf::MessageFactory::generated_factory()->GetPrototype(type)->New());
    if (auto* describe = dynamic_cast<v1::DescribeRequest*>(message.get())) {
      describe->set_protocol_version(kHandoffVersion);
    } else if (auto* generate = dynamic_cast<v1::GenerateRequest*>(message.get())) {
      *generate = Fleet::Request({5, 6, 7, 8, 9, 10, 11, 12, 13, 14}, 4, "");
      generate->mutable_constraint()->set_json_schema(R"({"type": "object"})");
      generate->mutable_sampling()->set_temperature(0.7);
    } else if (auto* run = dynamic_cast<v1::RunRequest*>(message.get())) {
      run->set_request_id("run");
      for (int32_t id = 5; id < 40; ++id) run->add_prompt(id);
      run->mutable_ticket()->set_id(std::string(16, 't'));
      run->mutable_ticket()->set_epoch(1);
      run->mutable_ticket()->mutable_format()->set_name("raw");
      run->mutable_ticket()->set_receiver_address(Receiver());
    } else if (auto* grant = dynamic_cast<v1::GrantRequest*>(message.get())) {
      grant->set_ticket_id(std::string(16, 't'));
    }
    return message;
  }

  // The decode server's data plane, by an endpoint id that it does not have.
  std::string Receiver() const {
    return EncodeAddress({.kind = AddressKind::kTcp,
                          .endpoint_id = 77,
                          .sockets = {{.family = 4,
                                       .reserved = 0,
                                       .port = static_cast<uint16_t>(fleet_.data_plane_port()),
                                       .ip = {127, 0, 0, 1}}}});
  }

  std::vector<int32_t> Ask(const std::string& format) {
    const Answer answer = fleet_.Ask(Fleet::Request(prompt_, 8, format));
    EXPECT_TRUE(answer.status.ok()) << answer.status;
    if (!format.empty()) {
      EXPECT_EQ(answer.started.plan(), "remote") << answer.started.fallback_reason();
    }
    return answer.tokens;
  }

  static std::string Draw(const Message& valid, HostileMessages& hostile) {
    std::unique_ptr<Message> message(valid.New());
    if (hostile.Up(4) == 0) {
      hostile.Fill(message.get());
    } else {
      message->CopyFrom(valid);
      hostile.Spoil(message.get());
    }
    std::string bytes = message->SerializeAsString();
    return hostile.Up(4) == 0 ? hostile.SpoilBytes(std::move(bytes)) : bytes;
  }

  // One call, to its end or to where it is cancelled.
  static grpc::Status Call(const Target& target, HostileMessages& hostile) {
    grpc::GenericStub stub(target.channel);
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() +
                         std::chrono::milliseconds(1 + hostile.Up(hostile.Up(4) == 0 ? 1500 : 150)));
    if (hostile.Up(8) == 0) context.AddMetadata("traceparent", std::string(hostile.Up(300), 'f'));
    grpc::CompletionQueue queue;
    const auto call = stub.PrepareCall(&context, target.method, &queue);
    const auto wait = [&queue] {
      void* tag = nullptr;
      bool ok = false;
      return queue.Next(&tag, &ok) && ok;
    };
    call->StartCall(nullptr);
    bool open = wait();
    for (uint64_t messages = hostile.Up(12) == 0 ? hostile.Up(3) : 1; open && messages > 0; --messages) {
      const grpc::Slice slice(Draw(*target.valid, hostile));
      call->Write(grpc::ByteBuffer(&slice, 1), nullptr);
      open = wait();
    }
    const uint64_t end = hostile.Up(8);
    if (end == 0) context.TryCancel();
    if (open && end != 1) {  // 1: never half-closed
      call->WritesDone(nullptr);
      wait();
    }
    grpc::ByteBuffer event;
    for (uint64_t events = 0;; ++events) {
      call->Read(&event, nullptr);
      if (!wait()) break;
      if (end == 2 && events == hostile.Up(3)) context.TryCancel();
    }
    grpc::Status status;
    call->Finish(&status, nullptr);
    wait();
    queue.Shutdown();
    return status;
  }

  // One caller: `count` calls.
  void Attack(uint64_t seed, int count) {
    HostileMessages hostile(seed);
    for (int i = 0; i < count && !HasFailure(); ++i) {
      const Target& target = targets_[hostile.Up(targets_.size())];
      const grpc::Status status = Call(target, hostile);
      // Whatever is wrong with it, the server says so, and it is never the server's end or an exception.
      EXPECT_TRUE(status.error_code() != grpc::StatusCode::UNAVAILABLE ||
                  absl::StrContains(status.error_message(), "the receiver's data plane cannot be reached"))
          << target.method << ", call " << i << " of seed " << seed << ": " << status.error_message();
      EXPECT_NE(status.error_code(), grpc::StatusCode::UNKNOWN)
          << target.method << ", call " << i << " of seed " << seed << ": " << status.error_message();
      std::lock_guard<std::mutex> lock(mutex_);
      ++ends_[status.error_code()];
    }
  }

  // What a caller sent stands in no line but for the beginning of a name.
  static size_t LongestLine(const std::string& log) {
    size_t longest = 0;
    for (const absl::string_view line : absl::StrSplit(log, '\n')) longest = std::max(longest, line.size());
    return longest;
  }

  // Nothing is left of what was asked, and what is known is as it was.
  void Look() {
    EXPECT_TRUE(fleet_.DecodeIsIdle(absl::Seconds(30)));
    EXPECT_TRUE(fleet_.PrefillIsIdle(absl::Seconds(30)));
    EXPECT_EQ(Ask("raw"), known_);
    EXPECT_EQ(Ask(""), known_);
    for (ServerProcess* server : {&fleet_.decode(), &fleet_.prefill()}) {
      EXPECT_NE(HttpGet(server->admin_port(), "/ready"), "");
      const int open = OpenDescriptors(server->pid());
      EXPECT_LE(open, descriptors_[server] + kSpareDescriptors);
      EXPECT_LT(LongestLine(server->Log()), kMaxLineBytes);
    }
  }

  Fleet fleet_{{.max_num_seqs = 16, .prefix_cache = false}};
  std::vector<Target> targets_;
  std::vector<int32_t> prompt_;
  std::vector<int32_t> known_;
  std::map<ServerProcess*, int> descriptors_;
  std::mutex mutex_;
  std::map<int, int> ends_;  // calls by status
};

TEST_F(RpcFuzz, ServersSurviveHostileCallsAndKeepNothingOfThem) {
  auto seed = static_cast<uint64_t>(wanted_seed);
  if (seed == 0) seed = std::random_device{}();
  std::cout << "seed " << seed << std::endl;
  for (ServerProcess* server : {&fleet_.decode(), &fleet_.prefill()}) {
    descriptors_[server] = OpenDescriptors(server->pid());
  }
  std::mt19937_64 random(seed);
  const absl::Time end = absl::Now() + absl::Seconds(wanted_seconds);
  while (absl::Now() < end && !HasFailure()) {
    std::vector<std::thread> callers;
    for (int i = 0; i < kCallers; ++i) {
      callers.emplace_back([this, own = random()] { Attack(own, kCallsBetweenLooks / kCallers); });
    }
    for (std::thread& caller : callers) caller.join();
    Look();
  }
  int calls = 0;
  std::string listed;
  for (const auto& [code, count] : ends_) {
    calls += count;
    absl::StrAppend(&listed, " ", code, ":", count);
  }
  std::cout << calls << " calls; by status" << listed << std::endl;
}

int Main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);  // takes its own flags away
  FlagSet flags("rpc_fuzz_test calls every gRPC method of the servers in hostile ways.");
  flags.Add("seconds", "S", &wanted_seconds, "how long to go on");
  flags.Add("seed", "N", &wanted_seed, "of all calls; 0: another one each time");
  const absl::Status parsed = flags.Parse(argc, argv);
  if (const auto answer = flags.Answer()) {
    std::cout << *answer;
    return 0;
  }
  if (!parsed.ok()) {
    std::cerr << "rpc_fuzz_test: " << parsed.message() << "\n";
    return 2;
  }
  return RUN_ALL_TESTS();
}

}  // namespace
}  // namespace aludel

int main(int argc, char** argv) { return aludel::Main(argc, argv); }
