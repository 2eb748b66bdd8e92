#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace aludel {

// Encrypts the frames of one ticket with AES-256-GCM, for data planes that are not private. The key is made
// for the ticket, travels with it over gRPC (which must be TLS then) and dies with it; the nonce is the
// frame's sequence number, which a ticket uses once. Layout: server/handoff/HANDOFF.md. Thread-safe; calls cost a
// pass over the bytes.
class FrameCipher {
 public:
  static constexpr size_t kKeyBytes = 32;
  static constexpr size_t kTagBytes = 16;
  using Key = std::array<uint8_t, kKeyBytes>;

  explicit FrameCipher(const Key& key) : key_(key) {}
  ~FrameCipher();
  FrameCipher(const FrameCipher&) = delete;
  FrameCipher& operator=(const FrameCipher&) = delete;

  // From the bytes of a ticket: null for an empty key, InvalidArgument for another length.
  static absl::StatusOr<std::unique_ptr<FrameCipher>> FromTicket(const std::string& key);

  // Encrypts all of `frame` but its last kTagBytes in place and puts the tag there. `associated` is protected
  // too, and not sent.
  void Seal(uint32_t sequence, absl::Span<const uint8_t> associated, absl::Span<uint8_t> frame) const;
  // The reverse; DataLoss where key, sequence, associated bytes or frame are not what Seal had: `frame` is
  // garbage then.
  absl::Status Open(uint32_t sequence, absl::Span<const uint8_t> associated, absl::Span<uint8_t> frame) const;

 private:
  Key key_;
};

}  // namespace aludel
