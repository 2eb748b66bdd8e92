#pragma once

#include <grpcpp/alarm.h>
#include <grpcpp/server.h>
#include <grpcpp/server_builder.h>

#include <chrono>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "aludel/v1/handoff.grpc.pb.h"
#include "server/rpc/handoff_version.h"

namespace aludel {

// A decode server without a model: `count` tokens for every request, the first at once, then one every
// `interval`. The text of each is the time at which it was sent, "@NANOSECONDS;" on the machine's steady
// clock, so that a client on the same machine knows how long it traveled.
class PacedDecode : public v1::Decode::CallbackService {
 public:
  struct Options {
    int port = 0;  // 0: any free one
    std::string tokenizer_fingerprint;
    uint64_t max_context = 64;
    std::chrono::milliseconds interval{100};
    int count = 1;
  };
  explicit PacedDecode(Options options) : options_(std::move(options)) {
    grpc::ServerBuilder builder;
    builder.AddListeningPort(absl::StrCat("127.0.0.1:", options_.port), grpc::InsecureServerCredentials(),
                             &port_);
    builder.RegisterService(this);
    server_ = builder.BuildAndStart();
  }
  ~PacedDecode() override { server_->Shutdown(std::chrono::system_clock::now()); }
  std::string target() const { return absl::StrCat("127.0.0.1:", port_); }

  grpc::ServerUnaryReactor* Describe(grpc::CallbackServerContext* context, const v1::DescribeRequest*,
                                     v1::DecodeDescription* reply) override {
    reply->set_protocol_version(kHandoffVersion);
    reply->set_served_model_name("chat");
    reply->mutable_model()->set_tokenizer_fingerprint(options_.tokenizer_fingerprint);
    reply->set_max_context(options_.max_context);
    grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
    reactor->Finish(grpc::Status::OK);
    return reactor;
  }

  grpc::ServerWriteReactor<v1::GenerateEvent>* Generate(grpc::CallbackServerContext*,
                                                        const v1::GenerateRequest*) override {
    return new Stream(options_);
  }

 private:
  class Stream : public grpc::ServerWriteReactor<v1::GenerateEvent> {
   public:
    explicit Stream(const Options& options) : options_(options) {
      event_.mutable_started()->set_plan("local");
      StartWrite(&event_);
    }
    void OnWriteDone(bool ok) override {
      if (!ok || last_) return Finish(ok ? grpc::Status::OK : grpc::Status::CANCELLED);
      if (sent_ == 0) return Send();
      alarm_.Set(std::chrono::system_clock::now() + options_.interval, [this](bool) { Send(); });
    }
    void OnDone() override { delete this; }

   private:
    void Send() {
      last_ = sent_++ == options_.count;
      if (last_) {
        event_.mutable_finished()->set_reason("stop");
      } else {
        event_.mutable_token()->set_text(
            absl::StrCat("@", std::chrono::steady_clock::now().time_since_epoch().count(), ";"));
      }
      StartWrite(&event_);
    }
    const Options& options_;
    grpc::Alarm alarm_;
    v1::GenerateEvent event_;
    int sent_ = 0;
    bool last_ = false;
  };

  const Options options_;
  int port_ = 0;
  std::unique_ptr<grpc::Server> server_;
};

}  // namespace aludel
