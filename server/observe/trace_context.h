#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"

namespace aludel {

// Where one operation stands in a distributed trace, as W3C Trace Context puts it into a `traceparent`
// header: the whole trace's id, and this operation's own. A value type.
struct TraceContext {
  std::array<uint8_t, 16> trace_id = {};
  std::array<uint8_t, 8> span_id = {};
  bool sampled = false;

  // Nothing for a header that is not of the standard's form: the trace then begins here.
  static std::optional<TraceContext> Parse(absl::string_view traceparent);
  // A new trace, sampled with the probability `share`.
  static TraceContext NewTrace(double share);
  // An operation within this one: same trace, a new id.
  TraceContext NewChild() const;

  std::string ToTraceparent() const;
  std::string TraceIdHex() const;
  std::string SpanIdHex() const;
};

inline constexpr char kTraceparent[] = "traceparent";

}  // namespace aludel
