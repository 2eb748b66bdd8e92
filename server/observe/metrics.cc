#include "server/observe/metrics.h"

#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "prometheus/client_metric.h"
#include "prometheus/counter.h"
#include "prometheus/gauge.h"
#include "prometheus/histogram.h"
#include "prometheus/metric_family.h"
#include "prometheus/registry.h"
#include "prometheus/text_serializer.h"
#include "server/observe/process_stats.h"

namespace aludel {

namespace {

size_t MaxValues(const std::string& label) {
  if (label == "model") return Metrics::kMaxModels;
  if (label == "target") return Metrics::kMaxTargets;
  return Metrics::kMaxLabelValues;
}

// Calls `drop` with the labels of each series that has this value of the label.
template <typename Metric, typename Drop>
void ForSeries(const prometheus::Family<Metric>& family, const std::string& label, const std::string& value,
               const Drop& drop) {
  for (const prometheus::MetricFamily& collected : family.Collect()) {
    for (const prometheus::ClientMetric& series : collected.metric) {
      MetricLabels labels;
      for (const auto& one : series.label) labels.emplace(one.name, one.value);
      const auto found = labels.find(label);
      if (found != labels.end() && found->second == value) drop(labels);
    }
  }
}

}  // namespace

struct Metrics::State {
  // Removes series of one metric (ForSeries), under `mutex`.
  using Dropper = std::function<void(const std::string& label, const std::string& value)>;

  // With "other" for values beyond their label's fill.
  MetricLabels Bound(MetricLabels labels) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);

  prometheus::Registry registry;
  prometheus::TextSerializer serializer;

  absl::Mutex mutex;  // held also while a series is written, which may be dropped
  std::map<std::string, std::set<std::string>> label_values ABSL_GUARDED_BY(mutex);
  std::map<std::string, Dropper> droppers ABSL_GUARDED_BY(mutex);  // by the metric's name
  std::vector<std::function<void()>> collectors ABSL_GUARDED_BY(mutex);
  std::map<prometheus::Counter*, double> last ABSL_GUARDED_BY(mutex);  // snapshots turned into increments
};

MetricLabels Metrics::State::Bound(MetricLabels labels) {
  for (auto& [label, value] : labels) {
    std::set<std::string>& values = label_values[label];
    if (values.count(value) != 0) continue;
    if (values.size() >= MaxValues(label)) {
      value = "other";
    } else {
      values.insert(value);
    }
  }
  return labels;
}

Metrics::Metrics() : state_(std::make_unique<State>()) {
  Gauge("aludel_build_info", "1, with the version as label.").Set({{"version", ALUDEL_VERSION}}, 1);
  Gauge("process_start_time_seconds", "Start of the process, Unix time.")
      .Set({}, absl::ToDoubleSeconds(absl::Now() - absl::UnixEpoch()));
  OnRender([cpu_seconds = Counter("process_cpu_seconds_total", "User and system CPU time."),
            resident_bytes = Gauge("process_resident_memory_bytes", "Resident memory."),
            open_fds = Gauge("process_open_fds", "Open file descriptors.")] {
    const ProcessStats process = ReadProcessStats();
    cpu_seconds.Raise({}, process.cpu_seconds);
    resident_bytes.Set({}, static_cast<double>(process.resident_bytes));
    open_fds.Set({}, static_cast<double>(process.open_fds));
  });
}
Metrics::~Metrics() = default;

const std::vector<double>& Metrics::TtftBuckets() {
  static const std::vector<double>* const kBuckets = new std::vector<double>{
      .001, .005, .01, .02, .04, .06, .08, .1, .25, .5, .75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640, 2560};
  return *kBuckets;
}

CounterFamily Metrics::Counter(const char* name, const char* help) {
  auto* const family = &prometheus::BuildCounter().Name(name).Help(help).Register(state_->registry);
  absl::MutexLock lock(&state_->mutex);
  state_->droppers[name] = [family, state = state_.get()](const std::string& label,
                                                          const std::string& value) {
    ForSeries(*family, label, value, [&](const MetricLabels& labels) {
      state->mutex.AssertHeld();
      prometheus::Counter* const counter = &family->Add(labels);
      state->last.erase(counter);
      family->Remove(counter);
    });
  };
  return {this, family};
}

GaugeFamily Metrics::Gauge(const char* name, const char* help) {
  auto* const family = &prometheus::BuildGauge().Name(name).Help(help).Register(state_->registry);
  absl::MutexLock lock(&state_->mutex);
  state_->droppers[name] = [family](const std::string& label, const std::string& value) {
    ForSeries(*family, label, value,
              [&](const MetricLabels& labels) { family->Remove(&family->Add(labels)); });
  };
  return {this, family};
}

HistogramFamily Metrics::Histogram(const char* name, const char* help, const std::vector<double>& buckets) {
  auto* const family = &prometheus::BuildHistogram().Name(name).Help(help).Register(state_->registry);
  absl::MutexLock lock(&state_->mutex);
  state_->droppers[name] = [family, &buckets](const std::string& label, const std::string& value) {
    ForSeries(*family, label, value,
              [&](const MetricLabels& labels) { family->Remove(&family->Add(labels, buckets)); });
  };
  return {this, family, &buckets};
}

std::set<std::string> Metrics::Values(const std::string& label) const {
  absl::MutexLock lock(&state_->mutex);
  const auto found = state_->label_values.find(label);
  return found == state_->label_values.end() ? std::set<std::string>() : found->second;
}

void Metrics::Forget(const std::string& label, const std::string& value) {
  absl::MutexLock lock(&state_->mutex);
  state_->label_values[label].erase(value);
}

void Metrics::Drop(const std::string& label, const std::string& value) {
  absl::MutexLock lock(&state_->mutex);
  for (const auto& [name, drop] : state_->droppers) drop(label, value);
  state_->label_values[label].erase(value);
}

void Metrics::OnRender(std::function<void()> collect) {
  absl::MutexLock lock(&state_->mutex);
  state_->collectors.push_back(std::move(collect));
}

std::string Metrics::Render() {
  std::vector<std::function<void()>> collectors;
  {
    absl::MutexLock lock(&state_->mutex);
    collectors = state_->collectors;
  }
  for (const auto& collect : collectors) collect();
  return state_->serializer.Serialize(state_->registry.Collect());
}

void CounterFamily::Add(const MetricLabels& labels, double increment) const {
  absl::MutexLock lock(&metrics_->state_->mutex);
  family_->Add(metrics_->state_->Bound(labels)).Increment(increment);
}

void CounterFamily::Raise(const MetricLabels& labels, double snapshot) const {
  absl::MutexLock lock(&metrics_->state_->mutex);
  prometheus::Counter& counter = family_->Add(metrics_->state_->Bound(labels));
  double& last = metrics_->state_->last[&counter];
  if (snapshot > last) counter.Increment(snapshot - last);
  last = snapshot;
}

void GaugeFamily::Set(const MetricLabels& labels, double value) const {
  absl::MutexLock lock(&metrics_->state_->mutex);
  family_->Add(metrics_->state_->Bound(labels)).Set(value);
}

void GaugeFamily::Remove(const MetricLabels& labels) const {
  absl::MutexLock lock(&metrics_->state_->mutex);
  // Not by Bound, which takes values in; one that was folded shares its series with the rest.
  if (!family_->Has(labels)) return;
  family_->Remove(&family_->Add(labels));
}

void HistogramFamily::Observe(const MetricLabels& labels, double value) const {
  absl::MutexLock lock(&metrics_->state_->mutex);
  family_->Add(metrics_->state_->Bound(labels), *buckets_).Observe(value);
}

void HistogramFamily::Expect(const MetricLabels& labels) const {
  absl::MutexLock lock(&metrics_->state_->mutex);
  family_->Add(metrics_->state_->Bound(labels), *buckets_);
}

}  // namespace aludel
