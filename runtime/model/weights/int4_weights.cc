#include <algorithm>
#include <array>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "runtime/model/weights/quantized_weights.h"
#include "runtime/status_macros.h"

namespace aludel {
namespace {

constexpr int64_t kNibbles = 8;  // of a 32-bit word

uint32_t Word(const SafetensorsEntry& entry, int64_t index) {
  uint32_t value;
  std::memcpy(&value, entry.data.data() + index * sizeof(value), sizeof(value));
  return value;
}

// The tensors of one matrix, shapes and types checked.
struct Int4Tensors {
  const SafetensorsEntry* qweight = nullptr;
  const SafetensorsEntry* qzeros = nullptr;
  const SafetensorsEntry* scales = nullptr;
  int64_t group = 0;
  int64_t groups = 0;
};

absl::StatusOr<const SafetensorsEntry*> FindWords(const ModelFiles& files, const std::string& name,
                                                  const std::vector<int64_t>& shape) {
  ALUDEL_ASSIGN_OR_RETURN(const SafetensorsEntry* entry, FindShaped(files, name, shape));
  if (entry->dtype == "I32" || entry->dtype == "U32") return entry;
  return absl::InvalidArgumentError(
      absl::StrFormat("%s: tensor %s has dtype %s, want I32", files.directory(), name, entry->dtype));
}

absl::StatusOr<Int4Tensors> FindInt4(const ModelFiles& files, const QuantizationConfig& quantization,
                                     const std::string& module, int64_t rows, int64_t cols,
                                     const std::vector<int64_t>& qweight_shape) {
  Int4Tensors tensors;
  tensors.group = quantization.group_size == 0 ? cols : quantization.group_size;
  if (rows % kNibbles != 0 || cols % kNibbles != 0 || cols % tensors.group != 0) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%s: %s is a %d x %d matrix, want multiples of %d and of group_size %d",
                        files.directory(), module, rows, cols, kNibbles, tensors.group));
  }
  tensors.groups = cols / tensors.group;
  ALUDEL_ASSIGN_OR_RETURN(tensors.qweight, FindWords(files, module + ".qweight", qweight_shape));
  ALUDEL_ASSIGN_OR_RETURN(tensors.qzeros,
                          FindWords(files, module + ".qzeros", {tensors.groups, rows / kNibbles}));
  const std::string scales = module + ".scales";
  ALUDEL_ASSIGN_OR_RETURN(tensors.scales, FindShaped(files, scales, {tensors.groups, rows}));
  if (!IsPlain(*tensors.scales)) {
    return absl::InvalidArgumentError(absl::StrFormat("%s: tensor %s has dtype %s, want F16, BF16 or F32",
                                                      files.directory(), scales, tensors.scales->dtype));
  }
  return tensors;
}

// Scales and zero points of rows [begin, end), group by group: [groups, end - begin].
class Dequantizer {
 public:
  template <typename ZeroOf>
  Dequantizer(const Int4Tensors& tensors, int64_t rows, int64_t begin, int64_t end, ZeroOf zero_of)
      : width_(end - begin), scales_(tensors.groups * width_), zeros_(tensors.groups * width_) {
    for (int64_t g = 0; g < tensors.groups; ++g) {
      ReadPlain(*tensors.scales, g * rows + begin, width_, &scales_[g * width_]);
      for (int64_t o = begin; o < end; ++o) zeros_[g * width_ + o - begin] = zero_of(g, o);
    }
  }
  float operator()(int64_t group, int64_t row, uint32_t nibble) const {
    const int64_t at = group * width_ + row;
    return static_cast<float>(static_cast<int>(nibble) - zeros_[at]) * scales_[at];
  }

 private:
  int64_t width_;
  std::vector<float> scales_;
  std::vector<int> zeros_;
};

// What both layouts have in common: inputs lie one behind the other, outputs side by side. A few rows cost
// what they are of the whole.
class Int4Matrix : public StoredMatrix {
 public:
  std::vector<TensorBytes> BytesOf(int64_t, int64_t) const override {
    std::vector<TensorBytes> all;
    for (const SafetensorsEntry* tensor : tensors()) all.push_back({tensor, 0, tensor->data.size()});
    return all;
  }
  TensorView InPlace() const override { return {}; }

 protected:
  Int4Matrix(int64_t rows, int64_t cols, const Int4Tensors& tensors)
      : StoredMatrix(rows, cols, {tensors.qweight, tensors.qzeros, tensors.scales}), tensors_(tensors) {}

  // Calls fill(input, begin, end, column) for all inputs of rows [begin, end) a tile at a time, `column`
  // being where its values go, kTileCols apart. Files hold the transpose of what is read: rows written one
  // number at a time would meet every cache line of the output sixteen times.
  static constexpr int64_t kTileRows = 64;
  static constexpr int64_t kTileCols = 16;
  template <typename Fill>
  void ReadTiles(int64_t begin, int64_t end, float* out, Fill fill) const {
    std::array<float, kTileRows * kTileCols> tile;
    for (int64_t row = begin; row < end; row += kTileRows) {
      const int64_t last_row = std::min(row + kTileRows, end);
      for (int64_t col = 0; col < cols(); col += kTileCols) {
        const int64_t width = std::min(kTileCols, cols() - col);
        for (int64_t i = 0; i < width; ++i) fill(col + i, row, last_row, &tile[i]);
        for (int64_t r = row; r < last_row; ++r) {
          std::copy_n(&tile[(r - row) * kTileCols], width, out + (r - begin) * cols() + col);
        }
      }
    }
  }

  const Int4Tensors tensors_;
};

class AwqMatrix final : public Int4Matrix {
 public:
  AwqMatrix(int64_t rows, int64_t cols, const Int4Tensors& tensors) : Int4Matrix(rows, cols, tensors) {}

  void Read(int64_t begin, int64_t end, float* out) const override {
    const int64_t words = rows() / kNibbles;
    const Dequantizer value(tensors_, rows(), begin, end, [&](int64_t group, int64_t row) {
      return static_cast<int>(Nibble(Word(*tensors_.qzeros, group * words + row / kNibbles), row % kNibbles));
    });
    ReadTiles(begin, end, out, [&](int64_t input, int64_t first, int64_t last, float* column) {
      const int64_t group = input / tensors_.group;
      uint32_t word = 0;
      for (int64_t row = first; row < last; ++row, column += kTileCols) {
        if (row == first || row % kNibbles == 0) {
          word = Word(*tensors_.qweight, input * words + row / kNibbles);
        }
        *column = value(group, row - begin, Nibble(word, row % kNibbles));
      }
    });
  }

 private:
  // Nibble of output `n` of a word's eight: where (0, 2, 4, 6, 1, 3, 5, 7) holds n.
  static uint32_t Nibble(uint32_t word, int64_t n) {
    constexpr int kShift[kNibbles] = {0, 16, 4, 20, 8, 24, 12, 28};
    return word >> kShift[n] & 15;
  }
};

class GptqMatrix final : public Int4Matrix {
 public:
  // `groups`: the group of each input.
  GptqMatrix(int64_t rows, int64_t cols, const Int4Tensors& tensors, std::vector<uint32_t> groups,
             int zero_offset)
      : Int4Matrix(rows, cols, tensors), groups_(std::move(groups)), zero_offset_(zero_offset) {}

  void Read(int64_t begin, int64_t end, float* out) const override {
    const int64_t zero_words = rows() / kNibbles;
    const Dequantizer value(tensors_, rows(), begin, end, [&](int64_t group, int64_t row) {
      const uint32_t word = Word(*tensors_.qzeros, group * zero_words + row / kNibbles);
      const uint32_t stored = word >> (4 * (row % kNibbles)) & 15;
      // A zero point of 0 less one is stored as 15.
      return static_cast<int>((stored + zero_offset_) & 15);
    });
    ReadTiles(begin, end, out, [&](int64_t input, int64_t first, int64_t last, float* column) {
      const int shift = static_cast<int>(4 * (input % kNibbles));
      for (int64_t row = first; row < last; ++row, column += kTileCols) {
        const uint32_t word = Word(*tensors_.qweight, input / kNibbles * rows() + row);
        *column = value(groups_[input], row - begin, word >> shift & 15);
      }
    });
  }

 private:
  std::vector<uint32_t> groups_;
  uint32_t zero_offset_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<StoredMatrix>> OpenAwqMatrix(const ModelFiles& files,
                                                            const QuantizationConfig& quantization,
                                                            const std::string& module, int64_t rows,
                                                            int64_t cols) {
  ALUDEL_ASSIGN_OR_RETURN(const Int4Tensors tensors,
                          FindInt4(files, quantization, module, rows, cols, {cols, rows / kNibbles}));
  return std::make_unique<AwqMatrix>(rows, cols, tensors);
}

absl::StatusOr<std::unique_ptr<StoredMatrix>> OpenGptqMatrix(const ModelFiles& files,
                                                             const QuantizationConfig& quantization,
                                                             const std::string& module, int64_t rows,
                                                             int64_t cols) {
  ALUDEL_ASSIGN_OR_RETURN(const Int4Tensors tensors,
                          FindInt4(files, quantization, module, rows, cols, {cols / kNibbles, rows}));
  std::vector<uint32_t> groups(cols);
  for (int64_t i = 0; i < cols; ++i) groups[i] = static_cast<uint32_t>(i / tensors.group);
  const std::string name = module + ".g_idx";
  if (files.Contains(name)) {
    ALUDEL_ASSIGN_OR_RETURN(const SafetensorsEntry* g_idx, FindWords(files, name, {cols}));
    for (int64_t i = 0; i < cols; ++i) {
      groups[i] = Word(*g_idx, i);
      if (groups[i] >= tensors.groups) {
        return absl::InvalidArgumentError(
            absl::StrFormat("%s: tensor %s holds group %d at %d, the matrix has %d groups", files.directory(),
                            name, static_cast<int32_t>(groups[i]), i, tensors.groups));
      }
    }
  }
  return std::make_unique<GptqMatrix>(rows, cols, tensors, std::move(groups), quantization.zero_offset);
}

}  // namespace aludel
