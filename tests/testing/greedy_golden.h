#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <fstream>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"
#include "runtime/text/tokenizer/tokenizer.h"

namespace aludel {

// A prompt of the demo pair and what PyTorch answers to it (deploy/demo/train/make_golden.py).
struct GreedyGolden {
  // Greedy tokens, the end included.
  struct Answer {
    std::vector<int32_t> tokens;
    std::map<size_t, float> near_ties;  // by step: the gap between the two best logits, where it is small

    float gap(size_t step) const {
      const auto found = near_ties.find(step);
      return found == near_ties.end() ? std::numeric_limits<float>::infinity() : found->second;
    }
  };
  std::vector<int32_t> prompt;
  std::map<std::string, Answer> answers;  // by mode: "exact", "bf16_kv"
};

// FNV-1a, an id a step: the prompts are made of questions.jsonl, and must be those that PyTorch read.
inline uint64_t PromptHash(const std::vector<int32_t>& prompt) {
  uint64_t hash = 0xcbf29ce484222325;
  for (const int32_t id : prompt) hash = (hash ^ static_cast<uint32_t>(id)) * 0x100000001b3;
  return hash;
}

// The first `count` of `model`, "base" or "chat".
inline std::vector<GreedyGolden> LoadGreedyGoldens(const std::string& model, size_t count) {
  const auto tokenizer = Tokenizer::Load("deploy/demo/" + model).value();
  std::ifstream goldens(absl::StrCat("tests/runtime/model/golden/", model, ".greedy.jsonl"));
  std::ifstream questions("deploy/demo/questions.jsonl");
  std::vector<GreedyGolden> loaded;
  std::string line, question;
  while (loaded.size() < count && std::getline(goldens, line) && std::getline(questions, question)) {
    const auto json = nlohmann::json::parse(line);
    const auto context = nlohmann::json::parse(question)["context"].get<std::string>();
    const std::string text = json["before"].get<std::string>() + context + json["behind"].get<std::string>();
    GreedyGolden golden{.prompt = tokenizer->Encode(text, /*add_special_tokens=*/false).value()};
    EXPECT_EQ(absl::StrCat(absl::Hex(PromptHash(golden.prompt))), json["prompt_hash"]) << text;
    for (const auto& [mode, answer] : json["answers"].items()) {
      GreedyGolden::Answer& read = golden.answers[mode];
      read.tokens = answer["tokens"].get<std::vector<int32_t>>();
      for (const auto& tie : answer["near_ties"]) read.near_ties[tie[0].get<size_t>()] = tie[1].get<float>();
    }
    loaded.push_back(std::move(golden));
  }
  return loaded;
}

}  // namespace aludel
