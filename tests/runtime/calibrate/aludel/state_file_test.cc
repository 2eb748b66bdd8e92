#include "runtime/calibrate/aludel/state_file.h"

#include <memory>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/open_device.h"
#include "tests/runtime/model/temporary_directory.h"

namespace aludel {
namespace {

class StateFileTest : public ::testing::Test {
 protected:
  std::unique_ptr<StateFile> Open(const std::vector<std::vector<int32_t>>& prompts, int side_layers,
                                  int64_t head = 2) {
    prefilled_ = 0;
    auto file = OpenStates(directory_.path(), *model_, prompts, side_layers, head, "prefill",
                           [&](absl::string_view, int64_t, int64_t) { return ++prefilled_ > 0; });
    EXPECT_TRUE(file.ok()) << file.status();
    return *std::move(file);
  }

  std::unique_ptr<Device> device_ = OpenDevice({.name = "cpu", .threads = 1}).value();
  std::unique_ptr<Transformer> model_ =
      Transformer::Load(device_.get(), ModelPath::Parse("deploy/demo/chat"), {.compute = DType::kF32})
          .value();
  TemporaryDirectory directory_;
  int prefilled_ = 0;  // calls of the last progress
};

std::vector<float> Row(const StateFile& file, int64_t row, int64_t begin, int64_t count) {
  std::vector<float> values(count);
  file.Read(row, begin, count, values.data());
  return values;
}

TEST_F(StateFileTest, AFileOfMoreLayersServesFewer) {
  const std::vector<std::vector<int32_t>> prompts = {{5, 9, 301, 44, 8}, {17, 4, 90}};
  const auto three = Open(prompts, 3);
  EXPECT_GT(prefilled_, 0);
  EXPECT_EQ(three->layout().side_layers, 3);
  EXPECT_EQ(three->rows(), 4) << "behind two head tokens of each";
  const auto two = Open(prompts, 2);
  EXPECT_EQ(prefilled_, 0) << "the file is there";
  const int64_t hidden = three->layout().hidden;
  for (int64_t row = 0; row < 8; ++row) {
    EXPECT_EQ(Row(*two, row, two->layout().h(0), 2 * hidden),
              Row(*three, row, three->layout().h(0), 2 * hidden));
  }
  const auto four = Open(prompts, 4);
  EXPECT_GT(prefilled_, 0);
  EXPECT_EQ(four->layout().side_layers, 4);
  EXPECT_EQ(Row(*four, 1, four->layout().kv(0), four->layout().h(3)),
            Row(*three, 1, 0, three->layout().h(3)));
}

TEST_F(StateFileTest, OtherPromptsOrHeadsHaveFilesOfTheirOwn) {
  Open({{5, 9, 301, 44, 8}}, 1);
  Open({{5, 9, 301, 44, 7}}, 1);
  EXPECT_GT(prefilled_, 0);
  Open({{5, 9, 301, 44, 8}}, 1, /*head=*/1);
  EXPECT_GT(prefilled_, 0);
  Open({{5, 9, 301, 44, 8}}, 1);
  EXPECT_EQ(prefilled_, 0);
}

}  // namespace
}  // namespace aludel
