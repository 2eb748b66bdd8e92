#include "server/prefill/kv_sender.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/check.h"
#include "server/artifact_prefix.h"

namespace aludel {
namespace {

// Payloads start on cache lines.
constexpr size_t kAlignment = 64;

}  // namespace

std::shared_ptr<KvSender> KvSender::Create(std::shared_ptr<PeerConnection> connection, FrameExtent extent,
                                           const TicketId& ticket, uint64_t epoch, const KvCodec& codec,
                                           std::unique_ptr<FrameCipher> cipher, Metrics* metrics) {
  FrameHeader header;
  header.kind = codec.kind();
  header.ticket = ticket;
  header.epoch = epoch;
  header.artifact = ArtifactPrefix(codec.artifact_hash());
  return std::shared_ptr<KvSender>(new KvSender(std::move(connection), std::move(extent), header,
                                                codec.name(), std::move(cipher), metrics));
}

KvSender::KvSender(std::shared_ptr<PeerConnection> connection, FrameExtent extent, const FrameHeader& header,
                   const std::string& format, std::unique_ptr<FrameCipher> cipher, Metrics* metrics)
    : connection_(std::move(connection)),
      extent_(std::move(extent)),
      format_(format),
      cipher_(std::move(cipher)),
      metrics_(metrics),
      header_(header) {}

absl::StatusOr<absl::Span<uint8_t>> KvSender::Reserve(size_t max_bytes) {
  {
    absl::MutexLock lock(&mutex_);
    if (!outcome_.status.ok()) return outcome_.status;
  }
  // The codec does not see the room for the tag.
  const size_t tag = cipher_ == nullptr ? 0 : FrameCipher::kTagBytes;
  if (max_bytes + tag > extent_.bytes().size() - used_) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the hand-over's send memory of ", extent_.bytes().size(), " bytes has ",
                     extent_.bytes().size() - used_, " left, the next frame needs ", max_bytes));
  }
  reserved_ = max_bytes;
  return extent_.bytes().subspan(used_, max_bytes);
}

absl::Status KvSender::Commit(const FrameCoverage& coverage, size_t bytes) {
  ALUDEL_CHECK(bytes <= reserved_);
  const size_t on_wire = bytes + (cipher_ == nullptr ? 0 : FrameCipher::kTagBytes);
  const absl::Span<uint8_t> payload = extent_.bytes().subspan(used_, on_wire);
  used_ = std::min(extent_.bytes().size(), (used_ + on_wire + kAlignment - 1) / kAlignment * kAlignment);
  reserved_ = 0;

  header_.coverage = coverage;
  header_.payload_bytes = static_cast<uint32_t>(on_wire);
  if (cipher_ != nullptr) cipher_->Seal(header_.sequence, EncodeFrameHeader(header_, {}), payload);
  const auto header = EncodeFrameHeader(header_, payload);
  ++header_.sequence;
  {
    absl::MutexLock lock(&mutex_);
    ++unfinished_;
    ++outcome_.frames;
    outcome_.frame_bytes += header.size() + on_wire;
  }
  metrics_->CountFrame("sent", format_, header.size() + on_wire);
  connection_->Send(header, payload,
                    [self = shared_from_this()](const absl::Status& status) { self->OnSent(status); });
  return absl::OkStatus();
}

void KvSender::OnSent(const absl::Status& status) {
  std::function<void(const Outcome&)> done;
  Outcome outcome;
  {
    absl::MutexLock lock(&mutex_);
    --unfinished_;
    if (outcome_.status.ok()) outcome_.status = status;
    if (unfinished_ == 0) std::swap(done, done_);
    outcome = outcome_;
  }
  if (done) done(outcome);
}

void KvSender::Finish(std::function<void(const Outcome&)> done) {
  Outcome outcome;
  {
    absl::MutexLock lock(&mutex_);
    ALUDEL_CHECK(!done_);
    if (unfinished_ > 0) {
      done_ = std::move(done);
      return;
    }
    outcome = outcome_;
  }
  done(outcome);
}

}  // namespace aludel
