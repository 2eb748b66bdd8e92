#pragma once

#include <grpcpp/create_channel.h>
#include <grpcpp/server.h>
#include <grpcpp/server_builder.h>

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "aludel/v1/handoff.grpc.pb.h"
#include "server/gateway/routing/decode_target.h"
#include "server/rpc/callback_threads.h"

namespace aludel {

// A decode server whose answers a test writes: real gRPC on a loopback port, no model behind it.
class FakeDecode : public v1::Decode::Service {
 public:
  static constexpr uint64_t kEpoch = 7;
  using Writer = grpc::ServerWriter<v1::GenerateEvent>;
  using Script = std::function<grpc::Status(grpc::ServerContext*, const v1::GenerateRequest&, Writer*)>;

  explicit FakeDecode(Script script, std::string model = "chat", std::string fingerprint = "",
                      std::string numerics = "fake", grpc::Service* also = nullptr)
      : script_(std::move(script)),
        model_(std::move(model)),
        fingerprint_(std::move(fingerprint)),
        numerics_(std::move(numerics)) {
    KeepCallbackThreads();
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port_);
    builder.RegisterService(this);
    if (also != nullptr) builder.RegisterService(also);
    server_ = builder.BuildAndStart();
  }
  ~FakeDecode() override { Stop(); }

  void Stop() { server_->Shutdown(std::chrono::system_clock::now()); }
  std::string target() const { return absl::StrCat("127.0.0.1:", port_); }
  v1::GenerateRequest last_request() {
    std::lock_guard<std::mutex> lock(mutex_);
    return last_request_;
  }
  int calls() {
    std::lock_guard<std::mutex> lock(mutex_);
    return calls_;
  }

  // From now on it says that it takes the codes of these.
  void TakeCodesOf(const std::string& producer, const std::string& encoder) {
    std::lock_guard<std::mutex> lock(mutex_);
    producer_ = producer;
    encoder_ = encoder;
  }
  // From now on it says that it has this adapter.
  void Have(const std::string& name, const std::string& hash, bool begins_as_base = false) {
    v1::AdapterDescription adapter;
    adapter.set_name(name);
    adapter.set_hash(hash);
    adapter.set_cache_of("adapter");
    adapter.set_begins_as_base(begins_as_base);
    std::lock_guard<std::mutex> lock(mutex_);
    adapters_.push_back(std::move(adapter));
  }

  grpc::Status Describe(grpc::ServerContext*, const v1::DescribeRequest*,
                        v1::DecodeDescription* reply) override {
    reply->set_protocol_version(kHandoffVersion);
    reply->set_served_model_name(model_);
    reply->mutable_model()->set_tokenizer_fingerprint(fingerprint_);
    reply->set_numerics(numerics_);
    reply->set_epoch(kEpoch);
    reply->set_max_context(64);
    reply->set_max_choices(8);
    for (const char* format : {"scd", "raw"}) reply->add_formats(format);
    std::lock_guard<std::mutex> lock(mutex_);
    reply->set_producer(producer_);
    reply->set_encoder(encoder_);
    for (const v1::AdapterDescription& adapter : adapters_) {
      reply->add_adapters(adapter.name());
      *reply->add_adapter_descriptions() = adapter;
    }
    return grpc::Status::OK;
  }

  grpc::Status Generate(grpc::ServerContext* context, const v1::GenerateRequest* request,
                        Writer* writer) override {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      last_request_ = *request;
      ++calls_;
    }
    return script_(context, *request, writer);
  }

  grpc::Status ResetCache(grpc::ServerContext*, const v1::ResetCacheRequest*,
                          v1::ResetCacheResponse*) override {
    ++resets_;
    return grpc::Status::OK;
  }
  int resets() const { return resets_; }

  // Vocabulary of scripts.
  static v1::GenerateEvent Started() {
    v1::GenerateEvent event;
    event.mutable_started()->set_plan("remote");
    event.mutable_started()->set_format("scd");
    event.mutable_started()->set_payload_bytes(100);
    event.mutable_started()->set_raw_bytes(400);
    event.mutable_started()->mutable_stages()->set_prefill(0.25e-3);
    event.mutable_started()->mutable_stages()->set_ttft(0.25e-3);
    return event;
  }
  static v1::GenerateEvent Token(const std::string& text, int32_t id = 5) {
    v1::GenerateEvent event;
    event.mutable_token()->set_id(id);
    event.mutable_token()->set_text(text);
    return event;
  }
  static v1::GenerateEvent Finished(const v1::GenerateRequest& request, uint32_t tokens,
                                    const std::string& text = "") {
    v1::GenerateEvent event;
    event.mutable_finished()->set_reason("stop");
    event.mutable_finished()->set_prompt_tokens(static_cast<uint32_t>(request.prompt_size()));
    event.mutable_finished()->set_completion_tokens(tokens);
    event.mutable_finished()->set_text(text);
    return event;
  }
  // Answers "Hello", a part that shows nothing, " wörld" and a held-back "!".
  static grpc::Status Hello(grpc::ServerContext*, const v1::GenerateRequest& request, Writer* writer) {
    writer->Write(Started());
    for (const char* text : {"Hello", "", " w\xc3\xb6rld"}) writer->Write(Token(text));
    writer->Write(Finished(request, 3, "!"));
    return grpc::Status::OK;
  }

 private:
  const Script script_;
  const std::string model_;
  const std::string fingerprint_;
  const std::string numerics_;
  int port_ = 0;
  std::unique_ptr<grpc::Server> server_;
  std::mutex mutex_;
  v1::GenerateRequest last_request_;
  std::vector<v1::AdapterDescription> adapters_;
  std::string producer_, encoder_;
  int calls_ = 0;
  std::atomic<int> resets_{0};
};

}  // namespace aludel
