#pragma once

#include <vector>

#include "nlohmann/json.hpp"
#include "server/inspect/size_search.h"

namespace aludel {

// The bounds of each way to hand over, in the order of `formats`.
struct SizeBound {
  SizeFormat format;
  SizeBalance balance;
};

// In reading order, for RenderText.
nlohmann::ordered_json DescribeSize(const SizeDemand& demand, const SizeOptions& options,
                                    const SizeBalance& alone, const std::vector<SizeBound>& bounds,
                                    const std::vector<SizeProposal>& proposals);

// The one that takes the fewest servers; of equals the first.
const SizeProposal& Smallest(const std::vector<SizeProposal>& proposals);

}  // namespace aludel
