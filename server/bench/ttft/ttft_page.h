#pragma once

#include <string>
#include <vector>

#include "server/bench/ttft/ttft_rows.h"

namespace aludel {

// One HTML file without outside parts: for each link the time to the first token against the prompt's length,
// for each length against the link's rate (links without a cap are left out), and the table.
std::string TtftHtml(const std::vector<TtftRow>& rows, const std::string& title);

}  // namespace aludel
