#include "server/observe/trace_context.h"

#include <algorithm>

#include "absl/random/random.h"
#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"

namespace aludel {
namespace {

absl::BitGen& Random() {
  thread_local absl::BitGen random;
  return random;
}

template <size_t size>
std::array<uint8_t, size> RandomId() {
  std::array<uint8_t, size> id;
  do {
    for (uint8_t& byte : id) byte = absl::Uniform<uint8_t>(Random());
  } while (std::all_of(id.begin(), id.end(), [](uint8_t byte) { return byte == 0; }));
  return id;
}

template <size_t size>
std::string Hex(const std::array<uint8_t, size>& id) {
  return absl::BytesToHexString(absl::string_view(reinterpret_cast<const char*>(id.data()), id.size()));
}

// The standard wants lower case, and an id that is not all zeros.
template <size_t size>
bool ReadHex(absl::string_view text, std::array<uint8_t, size>* id) {
  if (text.size() != 2 * size) return false;
  for (const char c : text) {
    if (!absl::ascii_isdigit(c) && (c < 'a' || c > 'f')) return false;
  }
  const std::string bytes = absl::HexStringToBytes(text);
  std::copy(bytes.begin(), bytes.end(), id->begin());
  return std::any_of(id->begin(), id->end(), [](uint8_t byte) { return byte != 0; });
}

}  // namespace

std::optional<TraceContext> TraceContext::Parse(absl::string_view text) {
  // version "-" trace-id "-" parent-id "-" flags; later versions may append "-" and more.
  if (text.size() < 55 || text[2] != '-' || text[35] != '-' || text[52] != '-') return std::nullopt;
  const absl::string_view version = text.substr(0, 2);
  if (version == "ff" || (version == "00" && text.size() != 55)) return std::nullopt;
  if (text.size() > 55 && text[55] != '-') return std::nullopt;
  for (const char c : {version[0], version[1], text[53], text[54]}) {
    if (!absl::ascii_isdigit(c) && (c < 'a' || c > 'f')) return std::nullopt;
  }
  TraceContext context;
  if (!ReadHex(text.substr(3, 32), &context.trace_id) || !ReadHex(text.substr(36, 16), &context.span_id)) {
    return std::nullopt;
  }
  context.sampled = (absl::HexStringToBytes(text.substr(53, 2))[0] & 1) != 0;
  return context;
}

TraceContext TraceContext::NewTrace(double share) {
  return {.trace_id = RandomId<16>(),
          .span_id = RandomId<8>(),
          .sampled = share > 0 && absl::Uniform<double>(Random(), 0, 1) < share};
}

TraceContext TraceContext::NewChild() const {
  return {.trace_id = trace_id, .span_id = RandomId<8>(), .sampled = sampled};
}

std::string TraceContext::ToTraceparent() const {
  return absl::StrCat("00-", TraceIdHex(), "-", SpanIdHex(), sampled ? "-01" : "-00");
}

std::string TraceContext::TraceIdHex() const { return Hex(trace_id); }
std::string TraceContext::SpanIdHex() const { return Hex(span_id); }

}  // namespace aludel
