#include "transport/tcp/tcp_parser.h"

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/escaping.h"
#include "gtest/gtest.h"
#include "tests/transport/recording_handler.h"

namespace aludel {
namespace {

constexpr uint64_t kEndpoint = 0x1122334455667788;

std::string Bytes(const TcpHead& head) {
  return {reinterpret_cast<const char*>(head.bytes.data()), head.size};
}

std::string Hello(uint64_t endpoint = kEndpoint) {
  return Bytes(EncodeTcpHead(TcpFrameType::kHello, endpoint, {}, 0));
}

std::string Data(uint64_t number, const std::string& header, const std::vector<uint8_t>& payload) {
  return Bytes(EncodeTcpHead(TcpFrameType::kData, number, AsBytes(header), payload.size())) +
         std::string(payload.begin(), payload.end());
}

// One connection's parser and what comes out of it.
class Connection {
 public:
  // Fills what the parser has room for, at most `piece` bytes at a time; stops at the first error.
  absl::Status Feed(const std::string& bytes, size_t piece = 1 << 20) {
    for (size_t at = 0; at < bytes.size();) {
      const absl::Span<uint8_t> room = parser_.Room();
      largest_room_ = std::max(largest_room_, room.size());
      if (room.empty()) return absl::InternalError("no room");
      const size_t take = std::min({piece, room.size(), bytes.size() - at});
      std::copy_n(bytes.begin() + at, take, room.begin());
      at += take;
      if (absl::Status status = parser_.Received(take); !status.ok()) return status;
    }
    return absl::OkStatus();
  }

  RecordingHandler handler_;
  StatCounters counters_;
  TcpInbox inbox_{.handler = &handler_, .counters = &counters_, .endpoint_id = kEndpoint};
  TcpParser parser_{&inbox_};
  size_t largest_room_ = 0;
};

TEST(TcpWire, HasTheBytesOfTheDocument) {
  TcpHead head = EncodeTcpHead(TcpFrameType::kData, 0, AsBytes("hi"), 0x0102030405);
  SetNumber(head, 0x1112131415161718);
  EXPECT_EQ(absl::BytesToHexString(Bytes(head)),
            "41444c54"
            "0100"
            "03"
            "00"
            "02000000"
            "00000000"
            "0504030201000000"
            "1817161514131211"
            "6869");
}

TEST(TcpParser, UnderstandsAStreamHoweverItIsCut) {
  const std::vector<size_t> sizes = {0, 1, 4000, 70'000, 3, 300'000};
  std::string stream = Hello();
  for (size_t i = 0; i < sizes.size(); ++i) {
    stream += Data(i, "message " + std::to_string(i), Pattern(sizes[i], i));
  }
  for (const size_t piece : {1, 7, 31, 33, 4096, 1 << 20}) {
    Connection connection;
    ASSERT_TRUE(connection.Feed(stream, piece).ok()) << piece;
    ASSERT_EQ(connection.handler_.arrived(), sizes.size());
    for (size_t i = 0; i < sizes.size(); ++i) {
      const RecordingHandler::Received& message = connection.handler_.received()[i];
      EXPECT_EQ(message.header, "message " + std::to_string(i));
      EXPECT_TRUE(message.finished && message.status.ok());
      EXPECT_TRUE(message.payload() == absl::MakeConstSpan(Pattern(sizes[i], i))) << piece << " " << i;
    }
    EXPECT_EQ(connection.counters_.Snapshot().messages_received, sizes.size());
  }
}

TEST(TcpParser, HasNoRoomForMoreThanAHelloBeforeTheHello) {
  Connection stranger;
  EXPECT_EQ(stranger.parser_.Room().size(), sizeof(TcpPrefix));
  EXPECT_EQ(stranger.Feed(std::string(1000, '\0')).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(stranger.largest_room_, sizeof(TcpPrefix));

  Connection wrong_endpoint;
  EXPECT_EQ(wrong_endpoint.Feed(Hello(kEndpoint ^ 1)).code(), absl::StatusCode::kPermissionDenied);
  Connection data_first;
  EXPECT_EQ(data_first.Feed(Data(0, "m", {1, 2, 3})).code(), absl::StatusCode::kPermissionDenied);
  EXPECT_EQ(data_first.handler_.arrived(), 0);
}

TEST(TcpParser, RefusesEveryPrefixThatNoTransportWrites) {
  const std::string good = Data(0, "header", {1, 2, 3});
  for (size_t i = 0; i < sizeof(TcpPrefix); ++i) {
    if (i >= 16 && i < 21) continue;  // the payload's length may be anything up to 2^40
    if (i == 8) continue;             // the header's anything up to 256
    std::string changed = good;
    changed[i] ^= 0x40;
    Connection connection;
    EXPECT_FALSE(connection.Feed(Hello() + changed).ok()) << i;
    EXPECT_EQ(connection.handler_.arrived(), 0) << i;
  }
  // Frames come in order, none twice, and nobody says hello again.
  Connection connection;
  ASSERT_TRUE(connection.Feed(Hello() + good).ok());
  EXPECT_FALSE(connection.Feed(good).ok());
  Connection twice;
  EXPECT_FALSE(twice.Feed(Hello() + Hello()).ok());
}

TEST(TcpParser, PassesOverThePayloadOfADroppedMessage) {
  Connection connection;
  ASSERT_TRUE(connection.Feed(Hello() + Data(0, "refuse me", Pattern(200'000, 1)) + Data(1, "m", {7})).ok());
  ASSERT_EQ(connection.handler_.arrived(), 1);
  EXPECT_EQ(connection.handler_.received()[0].header, "m");
  EXPECT_EQ(connection.counters_.Snapshot().messages_dropped, 1);
}

TEST(TcpParser, EndsThePayloadThatIsUnderWay) {
  Connection connection;
  const std::string message = Data(0, "m", Pattern(1000, 1));
  ASSERT_TRUE(connection.Feed(Hello() + message.substr(0, 500)).ok());
  EXPECT_NE(connection.parser_.under_way(), 0);
  connection.parser_.End(absl::UnavailableError("gone"));
  connection.parser_.End(absl::UnavailableError("gone"));
  EXPECT_EQ(connection.parser_.under_way(), 0);
  EXPECT_TRUE(absl::IsUnavailable(connection.handler_.received()[0].status));
}

TEST(TcpParser, SurvivesStreamsWithAnythingChanged) {
  std::mt19937 random(7);
  std::string good = Hello();
  for (int i = 0; i < 4; ++i) good += Data(i, "message", Pattern(100 + 900 * i, i));
  for (int round = 0; round < 20'000; ++round) {
    std::string stream = good;
    for (int changes = random() % 4; changes >= 0; --changes) {
      const size_t at = random() % stream.size();
      switch (random() % 3) {
        case 0:
          stream[at] = static_cast<char>(random());
          break;
        case 1:
          stream.erase(at, random() % 64);
          break;
        default:
          stream.insert(at, std::string(random() % 64, static_cast<char>(random())));
      }
    }
    // A payload that claims to be huge is the handler's to refuse; RecordingHandler takes memory for it.
    Connection connection;
    connection.inbox_.handler = nullptr;
    class Bounded : public MessageHandler {
     public:
      absl::Span<uint8_t> OnHeader(MessageId, absl::Span<const uint8_t>, size_t bytes) override {
        EXPECT_FALSE(open_);
        open_ = bytes > 0 && bytes <= memory_.size();
        return open_ ? absl::MakeSpan(memory_).first(bytes) : absl::Span<uint8_t>();
      }
      void OnPayload(MessageId, absl::Status) override {
        EXPECT_TRUE(open_);
        open_ = false;
      }
      bool open_ = false;
      std::vector<uint8_t> memory_ = std::vector<uint8_t>(4096);
    } bounded;
    connection.inbox_.handler = &bounded;
    (void)connection.Feed(stream, 1 + random() % 2000);
    connection.parser_.End(absl::UnavailableError("over"));
    ASSERT_FALSE(bounded.open_);
  }
}

}  // namespace
}  // namespace aludel
