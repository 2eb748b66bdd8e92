// An operator's commands over a real gRPC connection.

#include "server/store/control/store_control_service.h"

#include <openssl/sha.h>
#include <unistd.h>

#include <filesystem>
#include <memory>
#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "aludel/v1/store.grpc.pb.h"
#include "gmock/gmock.h"
#include "grpcpp/create_channel.h"
#include "gtest/gtest.h"
#include "server/rpc/cache_salt.h"
#include "server/rpc/grpc_server.h"
#include "server/rpc/rpc_status.h"
#include "tests/server/store/store_fixture.h"
#include "tests/testing/server_process.h"

namespace aludel {
namespace {

using ::testing::HasSubstr;

constexpr char kToken[] = "operator";
constexpr size_t kPinnedBytes = 1000;

class StoreControlTest : public ::testing::Test {
 protected:
  using Stub = v1::StoreControl::Stub;
  template <typename Request, typename Response>
  using Method = grpc::Status (Stub::*)(grpc::ClientContext*, const Request&, Response*);

  StoreControlTest() {
    TokenHash hash;
    SHA256(reinterpret_cast<const uint8_t*>(kToken), sizeof(kToken) - 1, hash.data());
    const auto find_format = [this](absl::string_view name) {
      return name == codec_.name ? std::make_shared<const CodecSpec>(codec_) : nullptr;
    };
    service_ = MakeStoreControlService(StoreCommands({.store = &store_, .find_format = find_format}), hash,
                                       &handlers_);
    const std::string target = absl::StrCat("127.0.0.1:", FreePort());
    server_ = StartGrpcServer(target, {}, {}, {service_.get()}).value();
    stub_ = v1::StoreControl::NewStub(grpc::CreateChannel(target, grpc::InsecureChannelCredentials()));
  }
  ~StoreControlTest() override {
    server_->Shutdown();
    std::filesystem::remove_all(directory_);
  }

  template <typename Request, typename Response>
  absl::StatusOr<Response> Ask(Method<Request, Response> method, const Request& request,
                               const std::optional<std::string>& authorization = std::string("Bearer ") +
                                                                                 kToken) {
    grpc::ClientContext context;
    if (authorization) context.AddMetadata("authorization", *authorization);
    Response response;
    const grpc::Status status = (*stub_.*method)(&context, request, &response);
    if (!status.ok()) return FromGrpc(status);
    return response;
  }
  v1::StoredPrompt Prompt(const std::string& text, const std::string& key = "") const {
    v1::StoredPrompt prompt;
    for (const int32_t token : Letters(text)) prompt.add_tokens(token);
    prompt.set_format(codec_.name);
    prompt.set_key(key);
    return prompt;
  }
  v1::LookupResponse Lookup(const std::string& text, const std::string& key = "") {
    v1::LookupRequest request;
    *request.mutable_prompt() = Prompt(text, key);
    return Ask(&Stub::Lookup, request).value();
  }
  absl::StatusOr<v1::PinResponse> Pin(const std::string& text, int64_t ttl_s, const std::string& key = "") {
    v1::PinRequest request;
    *request.mutable_prompt() = Prompt(text, key);
    request.set_ttl_s(ttl_s);
    return Ask(&Stub::Pin, request);
  }
  v1::ListResponse List(const std::string& key) {
    v1::ListRequest request;
    request.mutable_of()->set_key(key);
    return Ask(&Stub::List, request).value();
  }
  bool AwaitWritten() const {
    for (int i = 0; i < 2000 && store_.stats().queued_bytes > 0; ++i) absl::SleepFor(absl::Milliseconds(5));
    return store_.stats().queued_bytes == 0;
  }

  const std::string directory_ = absl::StrCat(::testing::TempDir(), "/control-", getpid());
  CodecSpec codec_ = FakeSpec();
  PrefixStore store_{{.producer = "base",
                      .memory_bytes = 1 << 20,
                      .disk = PrefixStore::Disk{.path = directory_, .bytes = 1 << 20},
                      .pinned_bytes = kPinnedBytes,
                      .encoders = {EncoderTag(codec_)}}};
  WorkClock handlers_;
  std::unique_ptr<grpc::Service> service_;
  std::unique_ptr<grpc::Server> server_;
  std::unique_ptr<Stub> stub_;
};

TEST_F(StoreControlTest, AnswersThoseWhoHaveTheTokenAlone) {
  ASSERT_TRUE(PutLetters(store_, "abcd"));
  v1::ClearRequest clear;
  clear.set_all(true);
  for (const std::optional<std::string>& wrong :
       {std::optional<std::string>(), std::optional<std::string>(""), std::optional<std::string>("Bearer"),
        std::optional<std::string>("Bearer operato"), std::optional<std::string>("operator")}) {
    EXPECT_TRUE(absl::IsUnauthenticated(Ask(&Stub::Clear, clear, wrong).status())) << wrong.value_or("none");
    EXPECT_TRUE(absl::IsUnauthenticated(Ask(&Stub::Tenants, v1::TenantsRequest(), wrong).status()));
    EXPECT_TRUE(absl::IsUnauthenticated(Ask(&Stub::List, v1::ListRequest(), wrong).status()));
  }
  EXPECT_EQ(store_.stats().memory.entries, 1u);
  EXPECT_TRUE(Ask(&Stub::Tenants, v1::TenantsRequest()).ok());
}

TEST_F(StoreControlTest, RefusesWhatItDoesNotUnderstand) {
  const auto is_refused = [](const absl::Status& status, const std::string& what) {
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(what));
  };
  v1::LookupRequest lookup;
  is_refused(Ask(&Stub::Lookup, lookup).status(), "'format'");
  lookup.mutable_prompt()->set_format(codec_.name);
  is_refused(Ask(&Stub::Lookup, lookup).status(), "'tokens'");
  lookup.mutable_prompt()->add_tokens(-1);
  is_refused(Ask(&Stub::Lookup, lookup).status(), "'tokens'");
  is_refused(Pin("abcd", 0).status(), "'ttl_s'");
  is_refused(Pin("abcd", 7 * 24 * 3600 + 1).status(), "'ttl_s'");

  v1::ClearRequest clear;
  is_refused(Ask(&Stub::Clear, clear).status(), "\"all\"");
  clear.set_all(true);
  clear.mutable_of()->set_key("alice");
  is_refused(Ask(&Stub::Clear, clear).status(), "\"all\"");
  clear.set_all(false);
  clear.mutable_of()->set_tenant("0011223344556677");
  is_refused(Ask(&Stub::Clear, clear).status(), "'tenant'");
  clear.mutable_of()->clear_key();
  clear.mutable_of()->set_tenant("001122334455667");
  is_refused(Ask(&Stub::Clear, clear).status(), "'tenant'");
  clear.mutable_of()->clear_tenant();
  clear.mutable_of()->set_format("");
  is_refused(Ask(&Stub::Clear, clear).status(), "'format'");
  clear.clear_of();
  *clear.mutable_prompt() = Prompt("abcd");
  is_refused(Ask(&Stub::Clear, clear).status(), "nothing of it is stored");

  v1::ListRequest list;
  list.set_limit(1001);
  is_refused(Ask(&Stub::List, list).status(), "'limit'");
  v1::QuotaRequest quota;
  quota.set_memory_bytes(1);
  is_refused(Ask(&Stub::Quota, quota).status(), "'key'");
  quota.set_key("alice");
  quota.set_memory_bytes(-1);
  is_refused(Ask(&Stub::Quota, quota).status(), "'memory_bytes'");
}

TEST_F(StoreControlTest, LooksUpAndListsByKeyAndSalt) {
  ASSERT_TRUE(PutLetters(store_, "abcdefgh", MakeCacheSalt("alice", "")));
  ASSERT_TRUE(PutLetters(store_, "abcdefgh", MakeCacheSalt("alice", "fine")));
  ASSERT_TRUE(PutLetters(store_, "abcdefgh", MakeCacheSalt("bob", "")));
  const v1::LookupResponse found = Lookup("abcdefghijkl", "alice");
  EXPECT_EQ(found.tokens(), 8u);
  EXPECT_EQ(found.memory_tokens(), 8u);
  ASSERT_EQ(found.chunks_size(), 2);
  EXPECT_EQ(found.chunks(0).size(), sizeof(ChunkKey));
  for (const char* unknown : {"carol", ""}) {
    EXPECT_EQ(Lookup("abcdefgh", unknown).tokens(), 0u) << unknown;
    EXPECT_EQ(List(unknown).chunks_size(), 0) << unknown;
  }
  EXPECT_EQ(List("alice").chunks_size(), 4);
  v1::ListRequest list;
  list.mutable_of()->set_key("alice");
  list.mutable_of()->set_cache_salt("fine");
  const v1::ListResponse fine = Ask(&Stub::List, list).value();
  ASSERT_EQ(fine.chunks_size(), 2);
  EXPECT_GT(fine.chunks(0).memory_bytes(), 0u);
  EXPECT_EQ(fine.chunks(0).tokens(), 4u);
  list.set_limit(1);
  EXPECT_EQ(Ask(&Stub::List, list).value().chunks_size(), 1);
}

TEST_F(StoreControlTest, APinHasABudgetAndATimeToLive) {
  ASSERT_TRUE(PutLetters(store_, "abcdefgh", MakeCacheSalt("alice", "")));
  ASSERT_TRUE(PutLetters(store_, "abcdefgh", MakeCacheSalt("bob", "")));
  EXPECT_EQ(Pin("abcd", 1, "alice").value().tokens(), 4u);
  EXPECT_TRUE(absl::IsResourceExhausted(Pin("abcdefgh", 100, "bob").status()));
  EXPECT_EQ(Pin("abcd", 100, "carol").value().tokens(), 0u) << "an unknown salt has nothing to pin";
  // Once the first pin has ended there is room for the others.
  absl::SleepFor(absl::Milliseconds(1100));
  EXPECT_EQ(Pin("abcdefgh", 100, "bob").value().tokens(), 8u);
  int pinned = 0;
  const v1::ListResponse listed = List("bob");
  for (const v1::ListedChunk& chunk : listed.chunks()) pinned += chunk.pinned_s() > 90 ? 1 : 0;
  EXPECT_EQ(pinned, 2);
  v1::UnpinRequest unpin;
  *unpin.mutable_prompt() = Prompt("abcdefgh", "bob");
  EXPECT_EQ(Ask(&Stub::Unpin, unpin).value().tokens(), 8u);
  EXPECT_EQ(Ask(&Stub::Unpin, unpin).value().tokens(), 0u);
}

TEST_F(StoreControlTest, WhatIsOnDiskAloneIsPrefetched) {
  ASSERT_TRUE(PutLetters(store_, "abcdefgh", MakeCacheSalt("alice", "")));
  ASSERT_TRUE(AwaitWritten());
  v1::QuotaRequest quota;
  quota.set_key("alice");
  quota.set_memory_bytes(1);  // which empties its memory
  const std::string tenant = Ask(&Stub::Quota, quota).value().tenant();
  EXPECT_EQ(Lookup("abcdefgh", "alice").disk_tokens(), 8u);
  EXPECT_EQ(Lookup("abcdefgh", "alice").memory_tokens(), 0u);
  quota.set_memory_bytes(0);
  ASSERT_TRUE(Ask(&Stub::Quota, quota).ok());
  v1::PrefetchRequest prefetch;
  *prefetch.mutable_prompt() = Prompt("abcdefgh", "alice");
  EXPECT_EQ(Ask(&Stub::Prefetch, prefetch).value().loading_tokens(), 8u);
  for (int i = 0; i < 2000 && Lookup("abcdefgh", "alice").memory_tokens() < 8; ++i) {
    absl::SleepFor(absl::Milliseconds(5));
  }
  EXPECT_EQ(Lookup("abcdefgh", "alice").memory_tokens(), 8u);
  EXPECT_EQ(Ask(&Stub::Prefetch, prefetch).value().loading_tokens(), 0u);
  const v1::TenantsResponse tenants = Ask(&Stub::Tenants, v1::TenantsRequest()).value();
  ASSERT_EQ(tenants.tenants_size(), 1);
  EXPECT_EQ(tenants.tenants(0).tenant(), tenant);
  EXPECT_EQ(tenants.tenants(0).memory_chunks(), 2u);
  EXPECT_EQ(tenants.tenants(0).disk_chunks(), 2u);
  EXPECT_EQ(tenants.tenants(0).quota_memory_bytes(), 0u);
}

TEST_F(StoreControlTest, ClearsBySaltTenantFormatPrefixAndAll) {
  const auto clear = [&](const v1::ClearRequest& request) { return Ask(&Stub::Clear, request).value(); };
  for (const char* salt : {"", "fine"}) {
    ASSERT_TRUE(PutLetters(store_, "abcdefgh", MakeCacheSalt("alice", salt)));
    ASSERT_TRUE(PutLetters(store_, "abcdefgh", MakeCacheSalt("bob", salt)));
  }
  v1::ClearRequest unknown;
  unknown.mutable_of()->set_key("alise");
  EXPECT_EQ(clear(unknown).chunks(), 0u);
  v1::ClearRequest salt;
  salt.mutable_of()->set_key("alice");
  salt.mutable_of()->set_cache_salt("fine");
  EXPECT_EQ(clear(salt).chunks(), 2u);
  v1::ClearRequest prefix;
  *prefix.mutable_prompt() = Prompt("abcdefgh", "alice");
  EXPECT_EQ(clear(prefix).chunks(), 1u);
  EXPECT_EQ(Lookup("abcdefgh", "alice").tokens(), 4u);
  v1::ClearRequest tenant;
  tenant.mutable_of()->set_tenant(List("alice").chunks(0).tenant());
  EXPECT_EQ(clear(tenant).chunks(), 1u);
  v1::ClearRequest format;
  format.mutable_of()->set_format(codec_.name);
  EXPECT_EQ(clear(format).chunks(), 4u);
  ASSERT_TRUE(PutLetters(store_, "abcdefgh"));
  v1::ClearRequest all;
  all.set_all(true);
  EXPECT_FALSE(clear(all).has_chunks());
  EXPECT_EQ(store_.stats().memory.entries, 0u);
  EXPECT_EQ(store_.stats().disk.entries, 0u);
  EXPECT_EQ(store_.stats().disk.bytes, 0u);
}

}  // namespace
}  // namespace aludel
