#pragma once

#include <array>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <variant>
#include <vector>

#include "absl/time/time.h"
#include "server/observe/metrics.h"
#include "server/observe/trace_context.h"

namespace aludel {

// One operation of a trace, finished.
struct Span {
  enum class Kind { kInternal = 1, kServer = 2, kClient = 3 };  // OTLP's numbers
  using Value = std::variant<std::string, int64_t, double, bool, std::vector<std::string>>;

  TraceContext context;                // its own id
  std::array<uint8_t, 8> parent = {};  // zeros: a root
  std::string name;
  Kind kind = Kind::kInternal;
  absl::Time start;
  absl::Time end;
  std::string error;  // "" where it went well
  std::vector<std::pair<std::string, Value>> attributes;
};

// Ships spans to an OpenTelemetry collector: OTLP over HTTP in its JSON encoding, in batches, from one thread
// of its own. Export() never waits: when `max_queue` spans wait already, or the collector does not take a
// batch within the timeout, spans are dropped and counted. Spans that are not sampled are
// ignored. Thread-safe.
class OtlpExporter {
 public:
  struct Options {
    // E.g. http://127.0.0.1:4318/v1/traces, which ParseHttpUrl has taken; "": nothing is exported.
    std::string endpoint;
    std::string service;  // service.name, e.g. aludel-gateway
    size_t max_queue = 4096;
    size_t max_batch = 512;
    absl::Duration interval = absl::Seconds(1);  // between batches that are not full
    absl::Duration timeout = absl::Seconds(5);   // of one batch
  };
  // `metrics` must outlive the exporter.
  OtlpExporter(Options options, Metrics* metrics);
  // Sends what waits, within one timeout after the batch that may be on its way; counts what is left.
  ~OtlpExporter();

  bool enabled() const { return !options_.endpoint.empty(); }
  void Export(Span span);

 private:
  void Loop();

  const Options options_;
  const CounterFamily spans_;  // by what became of them
  std::mutex mutex_;           // as in Timer; guards what follows
  std::condition_variable wake_;
  std::deque<Span> queue_;
  bool stopping_ = false;
  absl::Time stop_by_;
  std::thread thread_;
};

// An ExportTraceServiceRequest in OTLP's JSON encoding.
std::string OtlpJson(const std::string& service, const std::vector<Span>& spans);

}  // namespace aludel
