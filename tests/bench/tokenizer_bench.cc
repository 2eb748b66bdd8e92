// Text to ids in MB/s on one core: the demo's passages through every tokenizer family of the tests.
#include <benchmark/benchmark.h>

#include <fstream>

#include "nlohmann/json.hpp"
#include "runtime/text/tokenizer/tokenizer.h"

namespace aludel {
namespace {

std::string Passages() {
  std::ifstream file("deploy/demo/questions.jsonl");
  std::string text;
  for (std::string line; std::getline(file, line);) {
    text += nlohmann::json::parse(line)["context"].get<std::string>() + "\n";
  }
  return text;
}

void Encode(benchmark::State& state, const std::string& directory) {
  auto tokenizer = Tokenizer::Load(directory);
  const std::string text = Passages();
  if (!tokenizer.ok() || text.empty()) {
    state.SkipWithError("run it from the repository root");
    return;
  }
  for (auto _ : state) benchmark::DoNotOptimize((*tokenizer)->Encode(text, false));
  state.SetBytesProcessed(static_cast<int64_t>(state.iterations() * text.size()));
}

BENCHMARK_CAPTURE(Encode, demo, std::string("deploy/demo/chat"));
BENCHMARK_CAPTURE(Encode, gpt2, std::string("tests/runtime/text/reference/gpt2"));
BENCHMARK_CAPTURE(Encode, llama3, std::string("tests/runtime/text/reference/llama3"));
BENCHMARK_CAPTURE(Encode, qwen2, std::string("tests/runtime/text/reference/qwen2"));
BENCHMARK_CAPTURE(Encode, llama2, std::string("tests/runtime/text/reference/llama2"));
BENCHMARK_CAPTURE(Encode, mistral, std::string("tests/runtime/text/reference/mistral"));

}  // namespace
}  // namespace aludel
