#pragma once

#include <string>

namespace aludel {

// For errors about a directory that lacks a file: what it holds in a format that is not read, and what to do
// about it, as "; NAME is ...". Empty where nothing known is there.
std::string ForeignWeights(const std::string& directory);
std::string ForeignTokenizer(const std::string& directory);

}  // namespace aludel
