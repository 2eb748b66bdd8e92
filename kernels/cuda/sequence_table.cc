#include "kernels/cuda/sequence_table.h"

#include <cstring>

#include "kernels/check.h"

namespace aludel::cuda {

SequenceTable StageSequences(absl::Span<const SequenceRows> sequences, CudaStream& stream) {
  const size_t count = sequences.size();
  size_t block_count = 0;
  for (const SequenceRows& sequence : sequences) block_count += sequence.blocks.size();
  const size_t entries_at = count * sizeof(int64_t);
  const size_t blocks_at = entries_at + count * sizeof(SequenceEntry);
  const auto write = [&](char* blob) {
    int64_t tokens = 0;
    int64_t block_begin = 0;
    for (size_t i = 0; i < count; ++i) {
      const SequenceRows& sequence = sequences[i];
      const SequenceEntry entry{sequence.row_begin, sequence.rows, sequence.position_begin, block_begin};
      std::memcpy(blob + i * sizeof(tokens), &tokens, sizeof(tokens));
      std::memcpy(blob + entries_at + i * sizeof(entry), &entry, sizeof(entry));
      if (!sequence.blocks.empty()) {
        std::memcpy(blob + blocks_at + block_begin * sizeof(int32_t), sequence.blocks.data(),
                    sequence.blocks.size() * sizeof(int32_t));
      }
      tokens += sequence.rows;
      block_begin += static_cast<int64_t>(sequence.blocks.size());
    }
  };
  const auto* staged = static_cast<const char*>(
      stream.StageTable(sequences.data(), blocks_at + block_count * sizeof(int32_t), write));
  if (staged == nullptr) return {};
  return {
      reinterpret_cast<const int64_t*>(staged), reinterpret_cast<const SequenceEntry*>(staged + entries_at),
      reinterpret_cast<const int32_t*>(staged + blocks_at), static_cast<int>(count), TotalRows(sequences)};
}

int64_t TotalRows(absl::Span<const SequenceRows> sequences) {
  int64_t rows = 0;
  for (const SequenceRows& sequence : sequences) rows += sequence.rows;
  return rows;
}

void CheckSequences(absl::Span<const SequenceRows> sequences, int64_t rows, int block_tokens) {
  for (const SequenceRows& sequence : sequences) {
    ALUDEL_CHECK(sequence.rows >= 0 && sequence.position_begin >= 0 && sequence.row_begin >= 0);
    ALUDEL_CHECK(sequence.row_begin + sequence.rows <= rows);
    if (block_tokens == 0) continue;
    ALUDEL_CHECK(sequence.position_begin + sequence.rows <=
                 static_cast<int64_t>(sequence.blocks.size()) * block_tokens);
  }
}

}  // namespace aludel::cuda
