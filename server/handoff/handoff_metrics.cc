#include "server/handoff/handoff_metrics.h"

#include <utility>

namespace aludel {

HandoffMetrics::HandoffMetrics(Metrics* metrics)
    : frames_(metrics->Counter("aludel_handoff_frames_total", "Frames handed over.")),
      frame_bytes_(metrics->Counter("aludel_handoff_bytes_total", "Frame bytes, headers included.")),
      handoff_time_(metrics->Histogram("aludel_handoff_seconds", "Handoffs from ticket to end, by outcome.",
                                       Metrics::TtftBuckets())) {}

void HandoffMetrics::CountFrame(const std::string& direction, const std::string& format,
                                uint64_t bytes) const {
  const MetricLabels labels = {{"direction", direction}, {"format", format}};
  frames_.Add(labels);
  frame_bytes_.Add(labels, static_cast<double>(bytes));
}

void HandoffMetrics::ExpectHandoff(const std::string& direction, const std::string& outcome) const {
  handoff_time_.Expect({{"direction", direction}, {"outcome", outcome}});
}

void HandoffMetrics::CountHandoff(const std::string& direction, const std::string& outcome,
                                  double seconds) const {
  handoff_time_.Observe({{"direction", direction}, {"outcome", outcome}}, seconds);
}

DataPlaneMetrics::DataPlaneMetrics(Metrics* metrics)
    : messages_(metrics->Counter("aludel_transport_messages_total", "Data-plane messages.")),
      bytes_(metrics->Counter("aludel_transport_bytes_total", "Data-plane payload bytes.")),
      channels_(metrics->Gauge("aludel_transport_channels", "Open data-plane connections.")),
      arena_(metrics->Gauge("aludel_frame_arena_bytes", "Registered frame memory: total, reserved.")),
      tickets_open_(metrics->Gauge("aludel_tickets_open", "Tickets issued and not closed.")) {}

void DataPlaneMetrics::Set(const TransportStats& stats, const FrameArena& arena, int64_t tickets_open) const {
  const std::pair<const char*, uint64_t> messages[] = {{"sent", stats.messages_sent},
                                                       {"received", stats.messages_received},
                                                       {"dropped", stats.messages_dropped},
                                                       {"send_failed", stats.send_failures},
                                                       {"emulated_fault", stats.emulated_faults}};
  for (const auto& [what, count] : messages) messages_.Raise({{"event", what}}, static_cast<double>(count));
  bytes_.Raise({{"event", "sent"}}, static_cast<double>(stats.bytes_sent));
  bytes_.Raise({{"event", "received"}}, static_cast<double>(stats.bytes_received));
  channels_.Set({}, static_cast<double>(stats.open_channels));
  arena_.Set({{"state", "total"}}, static_cast<double>(arena.bytes_total()));
  arena_.Set({{"state", "reserved"}}, static_cast<double>(arena.bytes_reserved()));
  tickets_open_.Set({}, static_cast<double>(tickets_open));
}

}  // namespace aludel
