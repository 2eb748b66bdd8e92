#include <array>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "kernels/e4m3.h"
#include "runtime/model/weights/quantized_weights.h"
#include "runtime/status_macros.h"

namespace aludel {
namespace {

// Every value of E4M3.
std::array<float, 256> MakeE4m3Table() {
  std::array<float, 256> table;
  for (int code = 0; code < 256; ++code) table[code] = FromE4m3(static_cast<uint8_t>(code));
  return table;
}

// Scale of the block at (row / block_rows, column / block_cols) of `scale` [., scale_cols].
struct ScaleGrid {
  const SafetensorsEntry* scale = nullptr;
  int64_t block_rows = 1;
  int64_t block_cols = 1;
  int64_t scale_cols = 1;
};

class Fp8Matrix final : public StoredMatrix {
 public:
  Fp8Matrix(int64_t rows, int64_t cols, const SafetensorsEntry* weight, const ScaleGrid& grid)
      : StoredMatrix(rows, cols, {weight, grid.scale}), weight_(weight), grid_(grid) {}

  void Read(int64_t begin, int64_t end, float* out) const override {
    static const std::array<float, 256> kTable = MakeE4m3Table();
    for (int64_t row = begin; row < end; ++row) {
      const uint8_t* in = weight_->data.data() + row * cols();
      const int64_t scale_row = row / grid_.block_rows * grid_.scale_cols;
      for (int64_t first = 0; first < cols(); first += grid_.block_cols) {
        const float scale = PlainElement(*grid_.scale, scale_row + first / grid_.block_cols);
        const int64_t last = std::min(cols(), first + grid_.block_cols);
        for (int64_t i = first; i < last; ++i) out[i] = kTable[in[i]] * scale;
      }
      out += cols();
    }
  }
  std::vector<TensorBytes> BytesOf(int64_t begin, int64_t end) const override {
    const auto row_bytes = static_cast<size_t>(cols());
    return {{weight_, begin * row_bytes, end * row_bytes}, {grid_.scale, 0, grid_.scale->data.size()}};
  }
  TensorView InPlace() const override { return {}; }
  const uint8_t* Fp8Codes(int64_t begin, int64_t end, float* scales) const override {
    if (grid_.block_cols < cols()) return nullptr;
    for (int64_t row = begin; row < end; ++row) {
      scales[row - begin] = PlainElement(*grid_.scale, row / grid_.block_rows * grid_.scale_cols);
    }
    return weight_->data.data() + begin * cols();
  }

 private:
  const SafetensorsEntry* weight_;
  ScaleGrid grid_;
};

int64_t Blocks(int64_t size, int64_t block) { return (size + block - 1) / block; }

}  // namespace

absl::StatusOr<std::unique_ptr<StoredMatrix>> OpenFp8Matrix(const ModelFiles& files,
                                                            const QuantizationConfig& quantization,
                                                            const std::string& module, int64_t rows,
                                                            int64_t cols) {
  ALUDEL_ASSIGN_OR_RETURN(const SafetensorsEntry* weight, files.Find(module + ".weight"));
  const char* suffix = files.Contains(module + ".weight_scale_inv") ? ".weight_scale_inv" : ".weight_scale";
  const std::string name = module + suffix;
  ALUDEL_ASSIGN_OR_RETURN(const SafetensorsEntry* scale, files.Find(name));
  if (!IsPlain(*scale)) {
    return absl::InvalidArgumentError(absl::StrFormat("%s: tensor %s has dtype %s, want F32, BF16 or F16",
                                                      files.directory(), name, scale->dtype));
  }
  ScaleGrid grid{scale, rows, cols, 1};
  std::vector<std::vector<int64_t>> shapes = {{}, {1}, {1, 1}};
  if (quantization.block_rows > 0) {
    grid.block_rows = quantization.block_rows;
    grid.block_cols = quantization.block_cols;
    grid.scale_cols = Blocks(cols, grid.block_cols);
    shapes = {{Blocks(rows, grid.block_rows), grid.scale_cols}};
  } else if (scale->elements() == rows && rows > 1) {
    grid.block_rows = 1;
    shapes = {{rows}, {rows, 1}};
  }
  for (const std::vector<int64_t>& shape : shapes) {
    if (scale->shape == shape) return std::make_unique<Fp8Matrix>(rows, cols, weight, grid);
  }
  return absl::InvalidArgumentError(absl::StrFormat(
      "%s: tensor %s has shape [%s], want %s", files.directory(), name, absl::StrJoin(scale->shape, ", "),
      quantization.block_rows > 0
          ? absl::StrCat("[", absl::StrJoin(shapes[0], ", "), "] (weight_block_size of config.json)")
          : absl::StrCat("one scale or one per row (", rows, ")")));
}

}  // namespace aludel
