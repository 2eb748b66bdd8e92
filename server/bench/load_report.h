#pragma once

#include <string>
#include <vector>

#include "nlohmann/json.hpp"
#include "server/bench/load_client.h"

namespace aludel {

// What counts as a good request; 0: no bound.
struct LoadObjective {
  double ttft_ms = 0;
  double inter_token_ms = 0;  // mean of a request
  double e2e_ms = 0;
};

// Percentiles of TTFT, inter-token and whole-request time over the answers that came whole, throughput,
// errors by reason, and goodput: requests per second that met the objective, out of all that were sent.
nlohmann::ordered_json SummarizeLoad(const std::vector<LoadResult>& results, const LoadObjective& objective);

// A few lines for people.
std::string DescribeLoad(const nlohmann::ordered_json& summary);

// One HTML file without outside parts: the figures, and the share of requests below each latency.
std::string LoadHtml(const nlohmann::ordered_json& summary, const std::vector<LoadResult>& results,
                     const std::string& title);

}  // namespace aludel
