#pragma once

#include <string>

namespace aludel {

// A function that the model wants called.
struct ToolCall {
  std::string id;
  std::string name;
  std::string arguments;  // a JSON object, as text
};

}  // namespace aludel
