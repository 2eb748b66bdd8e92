#include <random>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "grpcpp/create_channel.h"
#include "grpcpp/generic/generic_stub.h"
#include "gtest/gtest.h"
#include "tests/e2e/fleet.h"

namespace aludel {
namespace {

constexpr int kRequests = 400;
constexpr absl::Duration kLimit = absl::Seconds(2);

std::string ValidGenerate() {
  v1::GenerateRequest request = Fleet::Request({5, 6, 7, 8, 9, 10, 11, 12, 13, 14}, 4);
  request.mutable_sampling()->set_temperature(0.7);
  request.mutable_sampling()->set_choices(2);
  request.mutable_sampling()->add_stop("stop");
  request.mutable_constraint()->set_json_schema(R"({"type": "object"})");
  return request.SerializeAsString();
}

std::string ValidRun() {
  v1::RunRequest request;
  request.set_request_id("run");
  for (int32_t id = 5; id < 15; ++id) request.add_prompt(id);
  v1::Ticket* ticket = request.mutable_ticket();
  ticket->set_id(std::string(16, 't'));
  ticket->set_epoch(1);
  ticket->mutable_format()->set_name("raw");
  ticket->set_receiver_address("nobody listens here");
  return request.SerializeAsString();
}

// Flips, cuts, doubles and inserts; now and then bytes that never were a message.
std::string Spoil(std::string bytes, std::mt19937* random) {
  const auto at = [&](size_t end) { return end == 0 ? 0 : (*random)() % end; };
  if ((*random)() % 16 == 0) {
    bytes.resize(at(200));
    for (char& byte : bytes) byte = static_cast<char>((*random)());
    return bytes;
  }
  for (auto changes = 1 + (*random)() % 4; changes > 0; --changes) {
    switch ((*random)() % 4) {
      case 0:
        if (!bytes.empty()) bytes[at(bytes.size())] ^= static_cast<char>(1u << ((*random)() % 8));
        break;
      case 1:
        bytes.resize(at(bytes.size() + 1));
        break;
      case 2:
        bytes += bytes.substr(at(bytes.size()));
        break;
      default:
        bytes.insert(at(bytes.size() + 1), 1, static_cast<char>((*random)()));
    }
  }
  return bytes;
}

class HostileRequests : public ::testing::Test {
 protected:
  void SetUp() override { ASSERT_TRUE(fleet_.Start()); }

  // Sends `bytes` as the request of a server-streaming method and reads the answer to its end.
  static grpc::Status Send(const std::shared_ptr<grpc::Channel>& channel, const std::string& method,
                           const std::string& bytes) {
    grpc::GenericStub stub(channel);
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + absl::ToChronoMilliseconds(kLimit));
    grpc::CompletionQueue queue;
    const auto call = stub.PrepareCall(&context, method, &queue);
    const auto wait = [&queue] {
      void* tag = nullptr;
      bool ok = false;
      return queue.Next(&tag, &ok) && ok;
    };
    call->StartCall(nullptr);
    wait();
    const grpc::Slice slice(bytes);
    call->WriteLast(grpc::ByteBuffer(&slice, 1), grpc::WriteOptions(), nullptr);
    wait();
    grpc::ByteBuffer event;
    do {
      call->Read(&event, nullptr);
    } while (wait());
    grpc::Status status;
    call->Finish(&status, nullptr);
    wait();
    return status;
  }

  void Attack(int port, const std::string& method, const std::string& valid) {
    const auto channel =
        grpc::CreateChannel(absl::StrCat("127.0.0.1:", port), grpc::InsecureChannelCredentials());
    std::mt19937 random(20261121);
    for (int i = 0; i < kRequests && !HasFailure(); ++i) {
      const grpc::Status status = Send(channel, method, Spoil(valid, &random));
      // Whatever is wrong with it, the server says so, and nothing of it is our fault.
      EXPECT_NE(status.error_code(), grpc::StatusCode::UNAVAILABLE) << i << ": " << status.error_message();
      EXPECT_NE(status.error_code(), grpc::StatusCode::UNKNOWN) << i << ": " << status.error_message();
    }
  }

  Fleet fleet_{{.max_num_seqs = 16}};
};

TEST_F(HostileRequests, SpoiltGenerateRequestsLeaveNothingBehindInTheDecodeServer) {
  Attack(fleet_.decode_port(), "/aludel.v1.Decode/Generate", ValidGenerate());
  EXPECT_TRUE(fleet_.DecodeIsIdle());
  EXPECT_TRUE(fleet_.Ask(Fleet::Request({5, 6, 7, 8, 9, 10, 11, 12}, 4)).status.ok());
}

// A few kilobytes each, whose cost grows with the square of their size or faster where nothing bounds it.
std::vector<std::string> CostlySchemas() {
  std::string branches = R"({"oneOf":[{"$ref":"#/$defs/l0"},{"type":"integer"}],"$defs":{)";
  for (int level = 0; level < 8; ++level) {
    absl::StrAppend(&branches, "\"l", level, "\":{\"anyOf\":[true");
    for (int i = 0; i < 30; ++i) absl::StrAppend(&branches, ",{\"$ref\":\"#/$defs/l", level + 1, "\"}");
    branches += "]},";
  }
  std::string constants = "{\"oneOf\":[{\"const\":null}";
  for (int i = 0; i < 12000; ++i) absl::StrAppend(&constants, ",{\"const\":", i, "}");
  const std::string name(100000, 'n');
  return {branches + "\"l8\":{\"type\":\"string\"}}}", constants + "]}",
          absl::StrCat(R"({"properties":{")", name, R"(":{}},"additionalProperties":true})"),
          R"({"$defs":{"a":{"properties":{"x":{"anyOf":[{"$ref":"#/$defs/a"},{"$ref":"#/$defs/b"}]},"y":{}}},
             "b":{"properties":{"x":{"anyOf":[{"$ref":"#/$defs/a"},{"$ref":"#/$defs/b"}]},"z":{}}}},
             "$ref":"#/$defs/a"})"};
}

TEST_F(HostileRequests, CostlySchemasHoldNobodyUp) {
  const auto channel = grpc::CreateChannel(absl::StrCat("127.0.0.1:", fleet_.decode_port()),
                                           grpc::InsecureChannelCredentials());
  for (const std::string& schema : CostlySchemas()) {
    std::vector<std::thread> clients;
    for (int i = 0; i < 4; ++i) {
      clients.emplace_back([&channel, schema, i] {
        v1::GenerateRequest request = Fleet::Request({5, 6, 7, 8}, 40);
        request.mutable_constraint()->set_json_schema(schema);
        request.mutable_constraint()->set_prefix(std::string(1, static_cast<char>('a' + i)));  // no two alike
        const grpc::Status status = Send(channel, "/aludel.v1.Decode/Generate", request.SerializeAsString());
        EXPECT_NE(status.error_code(), grpc::StatusCode::DEADLINE_EXCEEDED) << schema.substr(0, 80);
      });
    }
    const absl::Time start = absl::Now();
    EXPECT_TRUE(fleet_.Ask(Fleet::Request({5, 6, 7, 8, 9, 10, 11, 12}, 4)).status.ok());
    EXPECT_LT(absl::Now() - start, kLimit) << schema.substr(0, 80);
    for (std::thread& client : clients) client.join();
  }
  EXPECT_TRUE(fleet_.DecodeIsIdle());
}

TEST_F(HostileRequests, SpoiltRunRequestsLeaveNothingBehindInThePrefillServer) {
  Attack(fleet_.prefill_port(), "/aludel.v1.Prefill/Run", ValidRun());
  EXPECT_TRUE(fleet_.PrefillIsIdle());
  const Answer answer = fleet_.Ask(Fleet::Request({5, 6, 7, 8, 9, 10, 11, 12}, 4));
  EXPECT_EQ(answer.started.plan(), "remote") << answer.started.fallback_reason();
}

}  // namespace
}  // namespace aludel
