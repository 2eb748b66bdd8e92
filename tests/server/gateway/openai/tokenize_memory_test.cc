// A binary of its own, because it counts what operator new gives out.
#include <malloc.h>

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <new>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "server/gateway/openai/model/served_models.h"
#include "server/gateway/openai/prompt.h"

namespace {

std::atomic<int64_t> live_bytes = 0;
std::atomic<int64_t> peak_bytes = 0;

void* Count(void* memory) {
  if (memory == nullptr) std::abort();
  const int64_t live = live_bytes += static_cast<int64_t>(malloc_usable_size(memory));
  if (live > peak_bytes) peak_bytes = live;
  return memory;
}

void Uncount(void* memory) { live_bytes -= static_cast<int64_t>(malloc_usable_size(memory)); }

}  // namespace

void* operator new(size_t size) { return Count(std::malloc(size)); }
void* operator new[](size_t size) { return Count(std::malloc(size)); }
void operator delete(void* memory) noexcept {
  Uncount(memory);
  std::free(memory);
}
void operator delete[](void* memory) noexcept { operator delete(memory); }
void operator delete(void* memory, size_t) noexcept { operator delete(memory); }
void operator delete[](void* memory, size_t) noexcept { operator delete(memory); }

namespace aludel {
namespace {

constexpr int64_t kTextBytes = 4 << 20;

// What one /tokenize of a text that repeats `unit` takes at most, beside its body.
int64_t PeakBytes(const ServedModels& models, absl::string_view unit) {
  std::string text;
  text.reserve(kTextBytes + unit.size());
  while (text.size() < kTextBytes) text.append(unit.data(), unit.size());
  const std::string body = absl::StrCat(R"({"model": "m", "prompt": ")", text, "\"}");
  const int64_t before = live_bytes;
  peak_bytes = before;
  EXPECT_EQ(ServeTokenize(models, body, [](const std::string&) { return 0; }).status, 200);
  return peak_bytes - before;
}

TEST(TokenizeMemory, IsAtMostAHundredMegabytesForFourOfText) {
  const auto models = ServedModels::Load({{.name = "m", .directory = "deploy/demo/chat"}});
  ASSERT_TRUE(models.ok()) << models.status();
  // Of these nearly every byte is a piece of its own, or a token, or all of them are one piece.
  for (const char* unit : {"a1", "a.", " ", "a", "q", "\xc3\xa9,"}) {
    EXPECT_LT(PeakBytes(*models, unit), 100 << 20) << "of \"" << unit << "\"";
  }
}

// As SentencePiece has it: no pre-tokenizer, and without a space all of a text is one piece for the merges.
TEST(TokenizeMemory, IsTheSameWhereNothingCutsTheText) {
  std::vector<std::unique_ptr<ServedModel>> list;
  list.push_back(std::make_unique<ServedModel>());
  list[0]->name = std::string(1, 'm');
  list[0]->tokenizer =
      Tokenizer::FromJson(
          R"({"added_tokens": [], "normalizer": {"type": "Replace", "pattern": {"String": " "},
          "content": "\u2581"}, "pre_tokenizer": null, "post_processor": null, "decoder": {"type": "Fuse"},
          "model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "\u2581": 2, "ab": 3, "aa": 4, "aaaa": 5, "ba": 6},
                    "merges": [["a", "b"], ["a", "a"], ["aa", "aa"], ["b", "a"]]}})",
          "tokenizer.json")
          .value();
  const ServedModels models(std::move(list));
  for (const char* unit : {"a", "ab", "b", " ", "a "}) {
    EXPECT_LT(PeakBytes(models, unit), 100 << 20) << "of \"" << unit << "\"";
  }
}

}  // namespace
}  // namespace aludel
