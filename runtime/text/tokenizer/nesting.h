#pragma once

namespace aludel {

// Sequences within sequences that a step of tokenizer.json may hold.
inline constexpr int kMaxSequenceNesting = 4;

}  // namespace aludel
