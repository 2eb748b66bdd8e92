#include "server/rpc/event_stream.h"

#include <future>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "aludel/v1/handoff.grpc.pb.h"
#include "grpcpp/create_channel.h"
#include "grpcpp/server_builder.h"
#include "gtest/gtest.h"

namespace aludel {
namespace {

using Stream = EventStream<v1::GenerateEvent>;

v1::GenerateEvent Token(int32_t id, size_t text_bytes = 1) {
  v1::GenerateEvent event;
  event.mutable_token()->set_id(id);
  event.mutable_token()->set_text(std::string(text_bytes, 'x'));
  return event;
}

// A service whose one method gives the test its stream, and a client of it.
class Streaming : public ::testing::Test, public v1::Decode::CallbackService {
 protected:
  static constexpr size_t kBacklog = 4;

  Streaming() {
    int port = 0;
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
    builder.RegisterService(this);
    server_ = builder.BuildAndStart();
    stub_ = v1::Decode::NewStub(
        grpc::CreateChannel(absl::StrCat("127.0.0.1:", port), grpc::InsecureChannelCredentials()));
    reader_ = stub_->Generate(&context_, {});
    stream_ = created_.get_future().get();
  }
  ~Streaming() override {
    context_.TryCancel();
    if (stream_ != nullptr) stream_->End(grpc::Status::OK);
    stream_.reset();
    reader_.reset();
    server_->Shutdown(std::chrono::system_clock::now());
  }

  grpc::ServerWriteReactor<v1::GenerateEvent>* Generate(grpc::CallbackServerContext* call,
                                                        const v1::GenerateRequest*) override {
    auto stream = Stream::Create(call, kBacklog, [this] { cancelled_.Notify(); });
    created_.set_value(stream);
    return stream.get();
  }

  absl::Notification cancelled_;
  std::promise<std::shared_ptr<Stream>> created_;
  std::unique_ptr<grpc::Server> server_;
  std::unique_ptr<v1::Decode::Stub> stub_;
  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientReader<v1::GenerateEvent>> reader_;
  std::shared_ptr<Stream> stream_;
};

TEST_F(Streaming, EventsArriveInOrderAndThenTheEnd) {
  for (int32_t i = 0; i < 3; ++i) EXPECT_EQ(stream_->Push(Token(i)), Pushed::kTaken);
  stream_->End(grpc::Status::OK);
  EXPECT_EQ(stream_->Push(Token(9)), Pushed::kGone);
  stream_->End(grpc::Status(grpc::StatusCode::INTERNAL, "too late"));
  v1::GenerateEvent event;
  for (int32_t i = 0; i < 3; ++i) {
    ASSERT_TRUE(reader_->Read(&event));
    EXPECT_EQ(event.token().id(), i);
  }
  EXPECT_FALSE(reader_->Read(&event));
  EXPECT_TRUE(reader_->Finish().ok());
}

TEST_F(Streaming, ASlowReaderFillsTheBacklogAndNoMore) {
  // Bigger than gRPC's windows, so that writes wait for the reader; until they do, a backlog that is full is taken away again.
  int pushed = 0;
  const absl::Time limit = absl::Now() + absl::Seconds(10);
  Pushed last = Pushed::kTaken;
  for (int full = 0; full < 20 && absl::Now() < limit;) {
    last = stream_->Push(Token(pushed, 1 << 20));
    if (last == Pushed::kTaken) {
      ++pushed;
      full = 0;
    } else {
      ++full;
      absl::SleepFor(absl::Milliseconds(10));
    }
  }
  EXPECT_GE(pushed, static_cast<int>(kBacklog));
  EXPECT_LT(pushed, 100);
  EXPECT_EQ(last, Pushed::kFull);
  stream_->End(grpc::Status(grpc::StatusCode::RESOURCE_EXHAUSTED, "too slow"));
  v1::GenerateEvent event;
  int read = 0;
  while (reader_->Read(&event)) ++read;
  EXPECT_EQ(read, pushed - static_cast<int>(kBacklog) + 1);  // an error does not wait behind the backlog
  EXPECT_EQ(reader_->Finish().error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
}

TEST_F(Streaming, AReaderThatTakesNothingIsCutOff) {
  for (int32_t i = 0; stream_->Push(Token(i, 1 << 20)) == Pushed::kTaken;) ++i;
  stream_->End(grpc::Status(grpc::StatusCode::RESOURCE_EXHAUSTED, "too slow"));
  const std::weak_ptr<Stream> weak = stream_;
  stream_->Abort();
  stream_ = nullptr;
  const absl::Time limit = absl::Now() + absl::Seconds(10);
  while (!weak.expired() && absl::Now() < limit) absl::SleepFor(absl::Milliseconds(5));
  EXPECT_TRUE(weak.expired());  // gRPC is done with the call although nobody has read
}

TEST_F(Streaming, AClientThatGoesIsReportedOnceAndTheStreamCanStillEnd) {
  context_.TryCancel();
  EXPECT_TRUE(cancelled_.WaitForNotificationWithTimeout(absl::Seconds(10)));
  EXPECT_EQ(stream_->Push(Token(1)), Pushed::kGone);
}

}  // namespace
}  // namespace aludel
