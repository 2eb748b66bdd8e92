#pragma once

#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

namespace prometheus {
class Counter;
class Gauge;
class Histogram;
template <typename T>
class Family;
}  // namespace prometheus

namespace aludel {

class Metrics;

// Values of a series' labels, by name.
using MetricLabels = std::map<std::string, std::string>;

// A metric of one name, with a series for each set of label values. Copies name the same metric, which lives as long
// as its Metrics. Thread-safe; a call costs a lock and a hash look-up, so once per token is fine and once per layer
// is not.
class CounterFamily {
 public:
  // An increment of 0 makes the series start at 0, so that an alert sees the first increase.
  void Add(const MetricLabels& labels, double increment = 1) const;
  // Raises the counter to a snapshot that only grows.
  void Raise(const MetricLabels& labels, double snapshot) const;

 private:
  friend class Metrics;
  CounterFamily(Metrics* metrics, prometheus::Family<prometheus::Counter>* family)
      : metrics_(metrics), family_(family) {}
  Metrics* metrics_;
  prometheus::Family<prometheus::Counter>* family_;
};

// As CounterFamily, of values that come and go.
class GaugeFamily {
 public:
  void Set(const MetricLabels& labels, double value) const;
  // The series is gone until it is set again.
  void Remove(const MetricLabels& labels) const;

 private:
  friend class Metrics;
  GaugeFamily(Metrics* metrics, prometheus::Family<prometheus::Gauge>* family)
      : metrics_(metrics), family_(family) {}
  Metrics* metrics_;
  prometheus::Family<prometheus::Gauge>* family_;
};

// As CounterFamily, of distributions over fixed buckets.
class HistogramFamily {
 public:
  void Observe(const MetricLabels& labels, double value) const;
  // Makes the series start at 0, so that an alert sees the first observation.
  void Expect(const MetricLabels& labels) const;

 private:
  friend class Metrics;
  HistogramFamily(Metrics* metrics, prometheus::Family<prometheus::Histogram>* family,
                  const std::vector<double>* buckets)
      : metrics_(metrics), family_(family), buckets_(buckets) {}
  Metrics* metrics_;
  prometheus::Family<prometheus::Histogram>* family_;
  const std::vector<double>* buckets_;
};

// The metrics of a process, and the only code that knows Prometheus: each class registers its own here, under the
// prefix aludel_ with vLLM's stems and buckets, and gets a handle. Registered again under the same name and help, a
// metric is the same one. A label takes at most kMaxLabelValues distinct values over all metrics, more where operators
// give them; what comes after is counted as "other", so that no peer can grow our memory. One per process; thread-safe;
// must outlive its handles' users.
class Metrics {
 public:
  static constexpr int kMaxLabelValues = 64;
  static constexpr int kMaxModels = 256;    // of "model", some 60 series each: adapters are models, too
  static constexpr int kMaxTargets = 4096;  // of "target", a series or two each

  Metrics();
  ~Metrics();

  CounterFamily Counter(const char* name, const char* help);
  GaugeFamily Gauge(const char* name, const char* help);
  // `buckets`, the upper bounds, must outlive the process' metrics: a constant.
  HistogramFamily Histogram(const char* name, const char* help, const std::vector<double>& buckets);

  // Called before every Render, to take snapshots.
  void OnRender(std::function<void()> collect);
  // That a label has, or had and that were not forgotten.
  std::set<std::string> Values(const std::string& label) const;
  // No series has this value of the label any more: it counts no more among the label's values.
  void Forget(const std::string& label, const std::string& value);
  // Every series with this value of the label goes, and it is forgotten. One that is written later begins at 0.
  void Drop(const std::string& label, const std::string& value);
  // The text exposition format, for GET /metrics.
  std::string Render();
  static constexpr char kContentType[] = "text/plain; version=0.0.4; charset=utf-8";

  // Of times to the first token in seconds: vLLM's, so that dashboards carry over.
  static const std::vector<double>& TtftBuckets();

 private:
  friend class CounterFamily;
  friend class GaugeFamily;
  friend class HistogramFamily;
  struct State;

  std::unique_ptr<State> state_;
};

}  // namespace aludel
