#include <algorithm>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "runtime/files/json_reader.h"
#include "runtime/model/adapters/adapter_config.h"
#include "runtime/model/adapters/lora_weights.h"
#include "runtime/model/weights/safetensors.h"
#include "tests/runtime/model/adapters/adapter_server.h"
#include "tests/testing/test_model.h"

// Adapters that HuggingFace PEFT made and saved, and what it computes with them (golden/make_peft.py).
namespace aludel {
namespace {

constexpr char kGolden[] = "tests/runtime/model/golden/";
constexpr char kNone[] = "__base__";
constexpr float kBound = 1e-5f;  // of the largest logit, in f32

using Rows = std::vector<std::vector<float>>;

// Sequences, each of one adapter of a base or of none, and the logits of their last tokens.
struct Golden {
  explicit Golden(const std::string& name) : directory(absl::StrCat(kGolden, "peft/", name)) {
    const auto file = SafetensorsFile::Open(directory + "/golden.safetensors").value();
    base = absl::StrCat(kGolden, "tiny/", file->metadata().at("base"));
    adapters = absl::StrSplit(file->metadata().at("rows"), ',');
    ids = Read<int32_t>(*file->Find("ids").value());
    unmerged = Read<float>(*file->Find("unmerged").value());
    mixed = Read<float>(*file->Find("mixed").value());
    if (file->entries().count("merged") != 0) merged = Read<float>(*file->Find("merged").value());
  }

  template <typename T>
  static std::vector<std::vector<T>> Read(const SafetensorsEntry& entry) {
    std::vector<std::vector<T>> rows(entry.shape[0], std::vector<T>(entry.shape[1]));
    const uint8_t* from = entry.data.data();
    for (std::vector<T>& row : rows) {
      std::memcpy(row.data(), from, row.size() * sizeof(T));
      from += row.size() * sizeof(T);
    }
    return rows;
  }

  std::string DirectoryOf(const std::string& adapter) const { return absl::StrCat(directory, "/", adapter); }
  int64_t tokens() const { return static_cast<int64_t>(ids[0].size()); }

  std::string directory, base;
  std::vector<std::string> adapters;  // of each row
  std::vector<std::vector<int32_t>> ids;
  Rows unmerged, mixed, merged;  // the last empty where an adapter cannot be merged
};

class PeftAdapters : public ::testing::TestWithParam<const char*> {
 protected:
  PeftAdapters() {
    for (const std::string& adapter : golden_.adapters) {
      if (adapter == kNone || loaded_.count(adapter) != 0) continue;
      loaded_[adapter] = server_.Load(golden_.DirectoryOf(adapter));
      const std::string path = golden_.DirectoryOf(adapter) + "/" + kAdapterConfigFile;
      invocations_[adapter] =
          AdapterConfig::FromJson(ReadFile(path, 1 << 20).value(), path).value().invocation();
    }
  }

  // Where the adapter of a row begins to act.
  int64_t Begin(size_t row) const {
    const auto found = invocations_.find(golden_.adapters[row]);
    if (found == invocations_.end() || found->second.empty()) return 0;
    const std::vector<int32_t>& ids = golden_.ids[row];
    return std::find_end(ids.begin(), ids.end(), found->second.begin(), found->second.end()) - ids.begin();
  }

  // Tokens [begin, end) of a row: the base's, and behind them its adapter's.
  void AddItems(size_t row, int64_t begin, int64_t end, const BlockTable& table,
                std::vector<BatchItem>* items) const {
    const auto found = loaded_.find(golden_.adapters[row]);
    const LoraWeights* const adapter = found == loaded_.end() ? nullptr : found->second.get();
    const int64_t acts = std::clamp(Begin(row), begin, end);
    for (const auto& [from, to, of] :
         {std::tuple<int64_t, int64_t, const LoraWeights*>{begin, acts, nullptr}, {acts, end, adapter}}) {
      if (from == to) continue;
      items->push_back({.ids = absl::MakeConstSpan(golden_.ids[row]).subspan(from, to - from),
                        .position = from,
                        .blocks = table.ids(),
                        .wants_logits = to == end,
                        .adapter = of});
    }
  }

  // Logits of the last token of each of `rows`, in one batch; the tokens up to `first` in one before it.
  Rows Run(const std::vector<size_t>& rows, int64_t first) {
    std::vector<BlockTable> tables(rows.size());
    Rows logits;
    for (const auto& [begin, end] : {std::pair(int64_t{0}, first), std::pair(first, golden_.tokens())}) {
      std::vector<BatchItem> items;
      for (size_t i = 0; i < rows.size() && begin < end; ++i) {
        EXPECT_TRUE(tables[i].Grow(server_.pool(), end).ok());
        AddItems(rows[i], begin, end, tables[i], &items);
      }
      if (!items.empty()) logits = server_.Forward(items);
    }
    return logits;
  }

  static void ExpectSame(const std::vector<float>& found, const std::vector<float>& expected, size_t row) {
    EXPECT_LT(MaxDifference(found, expected) / Largest(expected), kBound) << "row " << row;
  }

  const Golden golden_{GetParam()};
  AdapterServer server_{golden_.base, {.compute = DType::kF32}};
  std::map<std::string, std::unique_ptr<LoraWeights>> loaded_;
  std::map<std::string, std::vector<int32_t>> invocations_;
};

TEST_P(PeftAdapters, GiveBesideTheirBaseWhatPeftGives) {
  for (size_t row = 0; row < golden_.ids.size(); ++row) {
    ExpectSame(Run({row}, 0)[0], golden_.unmerged[row], row);
  }
}

// All at once, and with the last token in a step of its own.
TEST_P(PeftAdapters, GiveInOneBatchWhatPeftGives) {
  std::vector<size_t> all(golden_.ids.size());
  for (size_t row = 0; row < all.size(); ++row) all[row] = row;
  for (const int64_t first : {int64_t{0}, golden_.tokens() - 1}) {
    const Rows found = Run(all, first);
    for (const size_t row : all) ExpectSame(found[row], golden_.mixed[row], row);
  }
}

// A row with an adapter is far from what the base says, and from what the other adapter does: neither could stand for it.
TEST_P(PeftAdapters, GiveWhatNoOtherDoes) {
  std::vector<size_t> rows;
  for (size_t row = 0; row < golden_.ids.size(); ++row) {
    if (golden_.adapters[row] != kNone) rows.push_back(row);
  }
  for (const size_t row : rows) {
    std::vector<const LoraWeights*> others = {nullptr};
    for (const auto& [name, weights] : loaded_) {
      if (name != golden_.adapters[row]) others.push_back(weights.get());
    }
    for (const LoraWeights* const other : others) {
      const auto found = server_.Run({{&golden_.ids[row], other}})[0];
      EXPECT_GT(MaxDifference(found, golden_.unmerged[row]) / Largest(found), 0.01f) << "row " << row;
    }
  }
}

TEST_P(PeftAdapters, GiveMergedWhatPeftGives) {
  if (golden_.merged.empty()) {
    // PEFT refuses to, and so do we.
    EXPECT_EQ(std::string(GetParam()), "activated");
    const auto model = Transformer::Load(server_.device(), {golden_.base, golden_.DirectoryOf("activated")},
                                         {.compute = DType::kF32});
    EXPECT_THAT(std::string(model.status().message()), ::testing::HasSubstr("alora_invocation_tokens"));
    return;
  }
  for (const auto& [adapter, unused] : loaded_) {
    for (size_t row = 0; row < golden_.ids.size(); ++row) {
      if (golden_.adapters[row] != adapter) continue;
      TestModel model({golden_.base, golden_.DirectoryOf(adapter)}, {.compute = DType::kF32}, DType::kF32,
                      golden_.tokens());
      ExpectSame(model.Run(golden_.ids[row]), golden_.merged[row], row);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Peft, PeftAdapters,
                         ::testing::Values("llama", "mistral", "qwen2", "qwen3", "activated"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace aludel
