// What a constrained answer costs on the token path, with a vocabulary of 128,000 made-up words: making the
// mask of a new state, looking up that of a known one and moving on, and the masked choice itself.
#include <benchmark/benchmark.h>

#include <random>

#include "runtime/engine/sampling/sampler.h"
#include "runtime/text/constrain/text_constraint.h"
#include "runtime/text/constrain/token_automaton.h"
#include "tests/runtime/text/constrain/byte_tokenizer.h"

namespace aludel {
namespace {

constexpr int kWords = 128000;
constexpr char kSchema[] =
    R"({"type": "object", "properties": {"answer": {"type": "string"}, "n": {"type": "integer"}},
        "required": ["answer", "n"], "additionalProperties": false})";

const TokenTable& Vocabulary() {
  static const TokenTable* const table = [] {
    std::mt19937 random(1);
    std::vector<std::string> words;
    for (int i = 0; i < kWords; ++i) {
      std::string word = random() % 2 == 0 ? " " : "";
      for (uint32_t size = 1 + random() % 9; size > 0; --size)
        word += "etaoinshrdlu,.\"}:0123"[random() % 21];
      words.push_back(word);
    }
    const ByteTokenizer tokenizer(std::move(words));
    return new TokenTable(tokenizer, std::vector<int>{ByteTokenizer::kEnd}, tokenizer.vocab_size());
  }();
  return *table;
}

std::unique_ptr<TokenAutomaton> Automaton() {
  const std::shared_ptr<const TokenTable> table(&Vocabulary(), [](const TokenTable*) {});
  return std::make_unique<TokenAutomaton>(CompileConstraint({"", kSchema, ""}).value(), table);
}

// Inside a string, where nearly the whole vocabulary is allowed.
void NewState(benchmark::State& state) {
  for (auto _ : state) {
    state.PauseTiming();
    const auto automaton = Automaton();
    TokenAutomaton::Cursor cursor(automaton.get());
    for (const char byte : std::string("{\"answer\":\"a")) cursor.Accept(byte);
    state.ResumeTiming();
    benchmark::DoNotOptimize(cursor.Mask().data());
  }
}
BENCHMARK(NewState)->Unit(benchmark::kMillisecond);

void KnownState(benchmark::State& state) {
  const auto automaton = Automaton();
  TokenAutomaton::Cursor cursor(automaton.get());
  for (const char byte : std::string("{\"answer\":\"a")) cursor.Accept(byte);
  for (auto _ : state) {
    benchmark::DoNotOptimize(cursor.Mask().data());
    cursor.Accept('a');
  }
}
BENCHMARK(KnownState);

void Compile(benchmark::State& state) {
  Vocabulary();
  for (auto _ : state) benchmark::DoNotOptimize(Automaton());
}
BENCHMARK(Compile)->Unit(benchmark::kMillisecond);

void Choose(benchmark::State& state) {
  const size_t vocab = kWords + 257;
  std::vector<float> logits(vocab);
  std::mt19937 random(2);
  for (float& logit : logits) logit = std::normal_distribution<float>(0, 3)(random);
  const std::vector<uint64_t> allowed((vocab + 63) / 64, ~uint64_t{0});
  SamplerScratch scratch(vocab);
  Sampler sampler({.temperature = state.range(1) / 10.0, .top_p = 0.95}, 7, 0, {}, 1);
  const absl::Span<const uint64_t> mask =
      state.range(0) != 0 ? absl::MakeConstSpan(allowed) : absl::Span<const uint64_t>();
  for (auto _ : state) benchmark::DoNotOptimize(sampler.Sample(logits, mask, &scratch));
}
BENCHMARK(Choose)
    ->ArgNames({"masked", "temperature_x10"})
    ->ArgsProduct({{0, 1}, {0, 10}})
    ->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace aludel
