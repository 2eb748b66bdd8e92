#pragma once

namespace aludel {

// A status with this payload says that no later attempt can be in time. It travels as error details of the same text.
inline constexpr char kHopeless[] = "aludel/hopeless";

}  // namespace aludel
