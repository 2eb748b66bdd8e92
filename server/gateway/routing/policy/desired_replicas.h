#pragma once

#include <algorithm>
#include <cmath>
#include <optional>

namespace aludel {

// How many decode servers a model's load calls for, averaged over about a minute, for an autoscaler. They are enough while
// their requests hold kPlaces of what they take at once, and while a prompt waits for kWait of the wanted time to the first
// token; what needs more servers of the two counts. A moment asks for kMost times the servers that there are at most: queues
// say that there are too few, and not by how many. Times are seconds of one clock. Not thread-safe.
class DesiredReplicas {
 public:
  static constexpr double kPlaces = 0.8;
  static constexpr double kWait = 0.5;
  static constexpr double kMost = 2;
  static constexpr double kSeconds = 60;

  struct Load {
    int replicas = 0;         // that take requests
    double pending = 0;       // requests, of all gateways
    double places = 0;        // for them; 0: not known
    double wait_seconds = 0;  // mean of the replicas'
  };
  // At least 1. Nothing is learned where no replica takes requests.
  double At(const Load& load, double objective_seconds, double now) {
    if (load.replicas > 0) {
      const double held = load.places > 0 ? load.pending / (kPlaces * load.places) : 0;
      const double waited = load.wait_seconds / (kWait * objective_seconds);
      const double needed = load.replicas * std::min(kMost, std::max(held, waited));
      const double fresh = needed_ ? 1 - std::exp(-std::max(0.0, now - at_) / kSeconds) : 1;
      needed_ = needed_.value_or(0) + fresh * (needed - needed_.value_or(0));
      at_ = now;
    }
    return std::max(1.0, std::ceil(needed_.value_or(1)));
  }

 private:
  std::optional<double> needed_;  // mean
  double at_ = 0;
};

}  // namespace aludel
