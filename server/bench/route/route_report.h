#pragma once

#include <string>
#include <utility>
#include <vector>

#include "nlohmann/json.hpp"
#include "server/bench/route/route_simulation.h"

namespace aludel {

// One policy's runs, one a seed.
struct RouteRuns {
  std::string policy;
  std::vector<SimResult> runs;
};

// Means over seeds, with the least and the most of the share of requests within the objective.
nlohmann::ordered_json SummarizeRoutes(const std::vector<RouteRuns>& policies, double objective_seconds);
// A table for people.
std::string DescribeRoutes(const nlohmann::ordered_json& summary);
// One HTML file without outside parts: the table, and the share of requests below each TTFT.
std::string RouteHtml(const nlohmann::ordered_json& summary, const std::vector<RouteRuns>& policies,
                      const std::string& title);

}  // namespace aludel
