#pragma once

#include "nlohmann/json.hpp"
#include "server/gateway/access/line_budget.h"
#include "server/gateway/access/request_record.h"
#include "server/http/http_message.h"
#include "server/observe/metrics.h"
#include "server/observe/otlp_exporter.h"

namespace aludel {

// Records requests: each is counted and logged, and a completion leaves a span too. Of answers with 429 one a second is
// logged; its line says how many were left out since the one before. Thread-safe; what it is
// given must outlive it.
class RequestJournal {
 public:
  // `traces` may be null.
  RequestJournal(Metrics* metrics, OtlpExporter* traces);

  // One that was answered at once; `quiet`: counted only.
  void Answered(const RequestIdentity& identity, const HttpResponse& response, bool quiet);
  // A request that the HTTP layer refused, or that came without a key. Any client can cause these, so their
  // lines are rate-limited; the next line says how many were left out.
  void Refused(const RequestIdentity& identity, const HttpError& error);
  void Completed(const RequestIdentity& identity, const CompletionOutcome& outcome);

 private:
  static constexpr int kRefusalLinesPerSecond = 20;
  // A full server refuses thousands a second, all for the same reason.
  static constexpr int kOverloadLinesPerSecond = 1;

  void Count(const RequestIdentity& identity, int status);
  void ExportSpan(const RequestIdentity& identity, const CompletionOutcome& outcome);

  const CounterFamily requests_;
  OtlpExporter* const traces_;
  // Writes the line unless it says 429 and another one lately did.
  void Log(int status, nlohmann::ordered_json line);

  LineBudget refusal_lines_{kRefusalLinesPerSecond};
  LineBudget overload_lines_{kOverloadLinesPerSecond};
};

}  // namespace aludel
