#pragma once

namespace aludel {

// What calls of Decode.Generate carry as metadata beside their messages (proto/aludel/v1/load.proto). All of it is optional:
// a peer that does not know it ignores it.

// From the server, with the first event and with the end: a LoadReport without prefixes.
inline constexpr char kLoadReportKey[] = "aludel-load-bin";
// From the gateway: PromptPrefixes.
inline constexpr char kPrefixesKey[] = "aludel-prefixes-bin";
// From the gateway, milliseconds in decimal digits: a server whose LoadReport.waiting_seconds is longer does not take the
// request, as another may be better.
inline constexpr char kWaitLimitKey[] = "aludel-wait-limit-ms";

// It answers RESOURCE_EXHAUSTED with these error details, and a LoadReport. It is not full.
inline constexpr char kTurnedAway[] = "aludel/turned-away";

}  // namespace aludel
