// A message from a peer: header, checksum, coverage. What passes must encode to the same header again, and
// the ledger must count exactly what it accepted.
#include <algorithm>
#include <cstdint>
#include <cstdlib>

#include "runtime/codec/frame.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size) {
  using namespace aludel;
  const absl::Span<const uint8_t> input(bytes, size);
  const absl::Span<const uint8_t> header_bytes = input.first(std::min(size, kFrameHeaderBytes));
  const absl::Span<const uint8_t> payload = input.subspan(header_bytes.size());
  const auto header = DecodeFrameHeader(header_bytes);
  if (!header.ok()) return 0;
  const bool verified = VerifyFrame(header_bytes, payload).ok();
  const auto again = EncodeFrameHeader(*header, payload);
  if (verified && !std::equal(again.begin(), again.end(), header_bytes.begin())) std::abort();
  FrameLedger ledger({true, false, true, true}, 4, 64);
  const uint64_t before = ledger.missing_cells();
  const bool added = ledger.Add(header->coverage).ok();
  const uint64_t cells = uint64_t{header->coverage.layers} * header->coverage.tokens;
  if (before - ledger.missing_cells() != (added ? cells : 0)) std::abort();
  if (added && ledger.Add(header->coverage).ok()) std::abort();
  return 0;
}
