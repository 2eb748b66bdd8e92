#include "runtime/model/adapters/lora_weights.h"

#include <cstring>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "runtime/bench/make_adapter.h"
#include "runtime/model/weights/safetensors.h"
#include "runtime/model/weights/weight_stream.h"
#include "tests/runtime/model/adapters/adapter_server.h"
#include "tests/runtime/model/temporary_directory.h"

namespace aludel {
namespace {

using ::testing::HasSubstr;

constexpr char kGolden[] = "tests/runtime/model/golden/";

std::string AdapterDirectory(const std::string& name) { return absl::StrCat(kGolden, "adapters/", name); }

struct Golden {
  explicit Golden(const std::string& name) : directory(AdapterDirectory(name)) {
    const auto file = SafetensorsFile::Open(directory + "/golden.safetensors").value();
    base = absl::StrCat(kGolden, "tiny/", file->metadata().at("base"));
    const SafetensorsEntry& stored = *file->Find("ids").value();
    ids.resize(static_cast<size_t>(stored.elements()));
    std::memcpy(ids.data(), stored.data.data(), stored.data.size());
    const SafetensorsEntry& all = *file->Find("logits").value();
    const auto vocab = static_cast<size_t>(all.shape[1]);
    const auto* values = reinterpret_cast<const float*>(all.data.data());
    logits.assign(values + (ids.size() - 1) * vocab, values + ids.size() * vocab);
  }
  std::string directory, base;
  std::vector<int32_t> ids;
  std::vector<float> logits;  // of the last token, by an unmerged pass in float64
};

class UnmergedAdapter : public ::testing::TestWithParam<const char*> {
 protected:
  const Golden golden_{GetParam()};
};

TEST_P(UnmergedAdapter, IsTheReferenceAndTheMergedModel) {
  for (const auto& [compute, bound] : std::map<DType, float>{{DType::kF32, 1e-5f}, {DType::kBf16, 0.03f}}) {
    // On a GPU an FP8 base would stay in FP8, and its inputs be rounded.
    AdapterServer server(golden_.base, {.compute = compute, .weights = FormatOf(compute)});
    const auto adapter = server.Load(golden_.directory);
    const auto found = server.Run({{&golden_.ids, adapter.get()}})[0];
    EXPECT_LT(MaxDifference(found, golden_.logits) / Largest(golden_.logits), bound) << Name(compute);
    TestModel merged({golden_.base, golden_.directory}, {.compute = compute, .weights = FormatOf(compute)},
                     compute, 64);
    EXPECT_LT(MaxDifference(found, merged.Run(golden_.ids)) / Largest(golden_.logits), bound)
        << Name(compute);
    EXPECT_EQ(adapter->hash(), merged.model().hash());
    EXPECT_NE(adapter->hash(), server.model().hash());
    EXPECT_GT(adapter->bytes(), 0);
  }
}

TEST_P(UnmergedAdapter, StandsBesideABaseOfIntegers) {
  AdapterServer exact(golden_.base, {.compute = DType::kF32});
  const auto base = exact.Run({{&golden_.ids, nullptr}})[0];
  for (const WeightFormat format : {WeightFormat::kInt8, WeightFormat::kInt4}) {
    AdapterServer server(golden_.base, {.compute = DType::kF32, .weights = format});
    const auto adapter = server.Load(golden_.directory);
    const auto found = server.Run({{&golden_.ids, adapter.get()}, {&golden_.ids, nullptr}});
    // What is lost is what rounding the base loses.
    const float lost = MaxDifference(found[1], base) / Largest(base);
    EXPECT_LT(MaxDifference(found[0], golden_.logits) / Largest(golden_.logits), 3 * lost) << Name(format);
    EXPECT_GT(MaxDifference(found[0], found[1]), 0.01f * Largest(base)) << Name(format);
  }
}

// With the base and with another adapter, of other modules, rank and numbers, before, between and behind.
TEST_P(UnmergedAdapter, InAMixedBatchEveryRowIsWhatItIsAlone) {
  const TemporaryDirectory files;
  const std::string other = files.File("other");
  ASSERT_TRUE(MakeAdapter({.base = golden_.base, .out = other, .rank = 3, .seed = 7, .strength = 0.5}).ok());
  for (const DType compute : {DType::kF32, DType::kBf16}) {
    // Where oneDNN multiplies, on AMX, bf16 is rounded by the batch's shape.
    const float bound = compute == DType::kF32 ? 1e-5f : 0.03f;
    // On a GPU an FP8 base would stay in FP8, and its inputs be rounded.
    AdapterServer server(golden_.base, {.compute = compute, .weights = FormatOf(compute)});
    const auto one = server.Load(golden_.directory);
    const auto two = server.Load(other);
    const std::vector<int32_t> shorter(golden_.ids.begin(), golden_.ids.begin() + 7);
    const std::vector<int32_t> single(golden_.ids.begin(), golden_.ids.begin() + 1);
    const std::vector<AdapterServer::Row> rows = {{&shorter, nullptr},       {&golden_.ids, one.get()},
                                                  {&single, two.get()},      {&shorter, one.get()},
                                                  {&golden_.ids, nullptr},   {&shorter, two.get()},
                                                  {&golden_.ids, one.get()}, {&golden_.ids, two.get()}};
    const auto together = server.Run(rows);
    for (size_t i = 0; i < rows.size(); ++i) {
      const auto alone = server.Run({rows[i]})[0];
      EXPECT_LT(MaxDifference(together[i], alone) / Largest(alone), bound)
          << "row " << i << ", " << Name(compute);
      // Nor does company move it away from what PEFT's layers give.
      if (rows[i].adapter != one.get() || rows[i].ids != &golden_.ids) continue;
      EXPECT_LT(MaxDifference(together[i], golden_.logits) / Largest(golden_.logits), bound)
          << "row " << i << ", " << Name(compute);
    }
    TestModel merged({golden_.base, other}, {.compute = compute, .weights = FormatOf(compute)}, compute, 64);
    const auto of_other = merged.Run(golden_.ids);
    EXPECT_LT(MaxDifference(together[7], of_other) / Largest(of_other), bound) << Name(compute);
    // The three are far from each other: none could stand for another.
    for (const auto& [a, b] : {std::pair(1, 4), std::pair(1, 7), std::pair(4, 7)}) {
      EXPECT_GT(MaxDifference(together[a], together[b]) / Largest(together[a]), 0.01f) << a << " and " << b;
    }
  }
}

TEST_P(UnmergedAdapter, TokenByTokenIsAtOnce) {
  for (const auto& [compute, bound] : std::map<DType, float>{{DType::kF32, 1e-5f}, {DType::kBf16, 0.03f}}) {
    // On a GPU an FP8 base would stay in FP8, and its inputs be rounded.
    AdapterServer server(golden_.base, {.compute = compute, .weights = FormatOf(compute)});
    const auto adapter = server.Load(golden_.directory);
    BlockTable table;
    ASSERT_TRUE(table.Grow(server.pool(), static_cast<int64_t>(golden_.ids.size())).ok());
    std::vector<float> last;
    for (size_t i = 0; i < golden_.ids.size(); ++i) {
      std::vector<BatchItem> items(1);
      items[0].ids = absl::MakeConstSpan(golden_.ids).subspan(i, 1);
      items[0].position = static_cast<int64_t>(i);
      items[0].blocks = table.ids();
      items[0].wants_logits = true;
      items[0].adapter = adapter.get();
      last = server.Forward(items)[0];
    }
    EXPECT_LT(MaxDifference(last, golden_.logits) / Largest(golden_.logits), bound) << Name(compute);
  }
}

INSTANTIATE_TEST_SUITE_P(Peft, UnmergedAdapter,
                         ::testing::Values("llama_list", "llama_all_linear", "llama_head", "mistral_layers",
                                           "qwen2_rslora", "qwen3_regex", "fp8_list"),
                         [](const auto& info) { return std::string(info.param); });

// As the engine runs it: what stands before the invocation as the base's, in the same batch and in another.
TEST(LoraWeights, OneThatIsActivatedIsTheReferenceOverTheBasesCache) {
  const Golden golden("qwen2_activated");
  constexpr int64_t kBegin = 13;  // golden/make_adapters.py
  AdapterServer server(golden.base, {.compute = DType::kF32});
  const auto adapter = server.Load(golden.directory);
  const auto part = [&](BlockTable& table, int64_t begin, int64_t end, const LoraWeights* of) {
    return BatchItem{.ids = absl::MakeConstSpan(golden.ids).subspan(begin, end - begin),
                     .position = begin,
                     .blocks = table.ids(),
                     .wants_logits = true,
                     .adapter = of};
  };
  const auto tokens = static_cast<int64_t>(golden.ids.size());
  for (const bool together : {true, false}) {
    BlockTable table;
    ASSERT_TRUE(table.Grow(server.pool(), tokens).ok());
    std::vector<BatchItem> items = {part(table, 0, kBegin, nullptr)};
    if (!together) server.Forward(items);
    if (!together) items.clear();
    items.push_back(part(table, kBegin, tokens, adapter.get()));
    EXPECT_LT(MaxDifference(server.Forward(items).back(), golden.logits) / Largest(golden.logits), 1e-5f);
  }
  // On every token it says something else.
  const auto whole = server.Run({{&golden.ids, adapter.get()}})[0];
  EXPECT_GT(MaxDifference(whole, golden.logits) / Largest(golden.logits), 0.01f);
}

// As the engine runs it: the base computes the cache of every token, and the adapter reads it beside the base's pass or
// behind it.
TEST(LoraWeights, OneThatOnlyReadsIsTheReferenceOverTheBasesCache) {
  const Golden golden("qwen3_reads_only");
  const auto tokens = static_cast<int64_t>(golden.ids.size());
  AdapterServer server(golden.base, {.compute = DType::kF32});
  const auto adapter = server.Load(golden.directory);
  EXPECT_FALSE(adapter->updates_cache());
  const auto part = [&](BlockTable& table, int64_t begin, int64_t end, const LoraWeights* of) {
    return BatchItem{.ids = absl::MakeConstSpan(golden.ids).subspan(begin, end - begin),
                     .position = begin,
                     .blocks = table.ids(),
                     .wants_logits = true,
                     .adapter = of,
                     .reads_only = of != nullptr};
  };
  const auto base = server.Run({{&golden.ids, nullptr}})[0];
  for (const bool together : {true, false}) {
    BlockTable table;
    ASSERT_TRUE(table.Grow(server.pool(), tokens).ok());
    // What it reads of earlier tokens leaves nothing for the later ones.
    std::vector<BatchItem> begun = {part(table, 0, 7, nullptr), part(table, 6, 7, adapter.get())};
    server.Forward(begun);
    std::vector<BatchItem> items = {part(table, 7, tokens, nullptr)};
    if (!together) {
      EXPECT_LT(MaxDifference(server.Forward(items)[0], base) / Largest(base), 1e-5f);
      items.clear();
    }
    items.push_back(part(table, tokens - 1, tokens, adapter.get()));
    const auto found = server.Forward(items);
    EXPECT_LT(MaxDifference(found.back(), golden.logits) / Largest(golden.logits), 1e-5f) << together;
    EXPECT_LT(MaxDifference(found[0], together ? base : golden.logits) / Largest(base), 1e-5f);
  }
  EXPECT_GT(MaxDifference(base, golden.logits) / Largest(golden.logits), 0.01f);
  EXPECT_GT(
      MaxDifference(server.Run({{&golden.ids, adapter.get()}})[0], golden.logits) / Largest(golden.logits),
      0.01f);
}

TEST(LoraWeights, ErrorsAreThoseOfTheMerge) {
  AdapterServer server(absl::StrCat(kGolden, "tiny/llama_sharded"), {.compute = DType::kF32});
  // Made for a base of other shapes.
  const std::string other = AdapterDirectory("llama_head");
  EXPECT_THAT(std::string(LoraWeights::Check(other, server.Base()).message()), HasSubstr("want ["));
  EXPECT_THAT(std::string(LoraWeights::Check("tests/no-such", server.Base()).message()),
              HasSubstr("adapter_model.safetensors"));
  EXPECT_TRUE(LoraWeights::Check(AdapterDirectory("llama_list"), server.Base()).ok());
  const TemporaryDirectory cut;
  const std::string source = AdapterDirectory("llama_list");
  std::filesystem::copy_file(source + "/adapter_config.json", cut.File("adapter_config.json"));
  std::filesystem::copy_file(source + "/adapter_model.safetensors", cut.File("adapter_model.safetensors"));
  std::filesystem::resize_file(cut.File("adapter_model.safetensors"), 1000);
  EXPECT_THAT(std::string(LoraWeights::Check(cut.path(), server.Base()).message()),
              HasSubstr("adapter_model.safetensors"));
}

}  // namespace
}  // namespace aludel
