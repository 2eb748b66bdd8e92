#include "server/gateway/openai/fields/sampling_fields.h"

#include <algorithm>
#include <limits>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "server/gateway/openai/fields/token_ids.h"

namespace aludel {
namespace {

using nlohmann::ordered_json;

constexpr size_t kMaxStopStrings = 16;
constexpr size_t kMaxStopBytes = 1024;
constexpr size_t kMaxBiases = 1024;
constexpr int64_t kMaxTopLogprobs = 20;
constexpr int64_t kMaxPlainLogprobs = 5;
constexpr int64_t kMaxChoices = 128;
constexpr size_t kMaxStopIds = 128;
constexpr size_t kMaxBadWords = 128;
constexpr size_t kMaxBadWordBytes = 60;  // the decode server takes 64 tokens
constexpr size_t kMaxAllowedIds = 65536;

// {"token id": bias}
void ParseLogitBias(JsonFields& fields, v1::SamplingParams* sampling) {
  fields.Describe("logit_bias", [] {
    return ordered_json{{"type", "object"},
                        {"propertyNames", {{"pattern", "^[0-9]+$"}}},
                        {"additionalProperties", {{"type", "number"}, {"minimum", -100}, {"maximum", 100}}},
                        {"maxProperties", kMaxBiases}};
  });
  const ordered_json* biases = fields.Object("logit_bias");
  if (biases == nullptr) return;
  if (biases->size() > kMaxBiases) {
    return fields.Fail("logit_bias",
                       absl::StrCat("holds ", biases->size(), " tokens, want at most ", kMaxBiases));
  }
  for (const auto& [key, value] : biases->items()) {
    int32_t token = 0;
    if (!absl::SimpleAtoi(key, &token) || token < 0) {
      return fields.Fail("logit_bias", absl::StrCat("holds the key '", key, "', want token ids"));
    }
    const double bias = value.is_number() ? value.get<double>() : std::numeric_limits<double>::quiet_NaN();
    if (!(bias >= -100 && bias <= 100)) {
      return fields.Fail("logit_bias",
                         absl::StrCat("must give token ", key, " a number between -100 and 100"));
    }
    v1::LogitBias* wire = sampling->add_logit_bias();
    wire->set_token(token);
    wire->set_bias(static_cast<float>(bias));
  }
}

using TokenIds = google::protobuf::RepeatedField<int32_t>;

void ParseIds(JsonFields& fields, const char* name, size_t least, size_t most, TokenIds* ids) {
  fields.Describe(name, [&] {
    return ordered_json{
        {"type", "array"}, {"items", TokenIdSchema()}, {"minItems", least}, {"maxItems", most}};
  });
  const ordered_json* value = fields.Find(name);
  if (value == nullptr) return;
  std::vector<int32_t> read;
  if (value->is_array() && value->size() > most) {
    return fields.Fail(name, absl::StrCat("holds ", value->size(), " tokens, want at most ", most));
  }
  if (auto error = ParseTokenIds(*value, name, &read)) return fields.Fail(*std::move(error));
  ids->Assign(read.begin(), read.end());
}

// vLLM's
void ParseEnds(JsonFields& fields, v1::SamplingParams* sampling) {
  sampling->set_min_tokens(static_cast<uint32_t>(
      fields.Integer("min_tokens", 0, std::numeric_limits<int32_t>::max()).value_or(0)));
  sampling->set_include_stop(fields.Bool("include_stop_str_in_output").value_or(false));
  ParseIds(fields, "stop_token_ids", 0, kMaxStopIds, sampling->mutable_stop_token_ids());
  ParseIds(fields, "allowed_token_ids", 1, kMaxAllowedIds, sampling->mutable_allowed_token_ids());
  if (fields.Find("allowed_token_ids") != nullptr && sampling->allowed_token_ids().empty()) {
    fields.Fail("allowed_token_ids", "must hold one token at least");
  }
}

}  // namespace

// By pointer: copying what a client nested a million deep would use up the stack.
void ParseStop(JsonFields& fields, absl::string_view name, v1::SamplingParams* sampling) {
  fields.Describe(name, [] {
    const ordered_json text = {{"type", "string"}, {"minLength", 1}, {"maxLength", kMaxStopBytes}};
    const ordered_json list = {{"type", "array"}, {"items", text}, {"maxItems", kMaxStopStrings}};
    return ordered_json{{"anyOf", ordered_json::array({text, list})}};
  });
  const ordered_json* stop = fields.Find(name);
  if (stop == nullptr) return;
  const size_t count = stop->is_array() ? stop->size() : 1;
  if (!(stop->is_string() || stop->is_array()) || count > kMaxStopStrings) {
    return fields.Fail(name,
                       absl::StrCat("must be a string or a list of at most ", kMaxStopStrings, " strings"));
  }
  for (size_t i = 0; i < count; ++i) {
    const ordered_json& item = stop->is_array() ? (*stop)[i] : *stop;
    if (!item.is_string() || item.get_ref<const std::string&>().empty() ||
        item.get_ref<const std::string&>().size() > kMaxStopBytes) {
      return fields.Fail(
          name, absl::StrCat("holds something else than a string of 1 to ", kMaxStopBytes, " bytes"));
    }
    sampling->add_stop(item.get<std::string>());
  }
}

void ParseSampling(JsonFields& fields, v1::SamplingParams* sampling) {
  if (const auto temperature = fields.Number("temperature", 0, 2)) sampling->set_temperature(*temperature);
  // top_p 0 keeps the likeliest token alone; the decode server's 0 would switch the filter off.
  if (const auto top_p = fields.Number("top_p", 0, 1)) sampling->set_top_p(std::max(*top_p, 1e-9));
  // -1 is what some clients write for "off".
  if (const auto top_k = fields.Integer("top_k", -1, std::numeric_limits<int32_t>::max())) {
    sampling->set_top_k(static_cast<uint32_t>(std::max<int64_t>(*top_k, 0)));
  }
  if (const auto min_p = fields.Number("min_p", 0, 1)) sampling->set_min_p(*min_p);
  // The decode server's 0 stands for absence; as a factor it would mean nothing.
  if (const auto penalty = fields.Number("repetition_penalty", 0.01, 10)) {
    sampling->set_repetition_penalty(*penalty);
  }
  sampling->set_presence_penalty(fields.Number("presence_penalty", -2, 2).value_or(0));
  sampling->set_frequency_penalty(fields.Number("frequency_penalty", -2, 2).value_or(0));
  if (const auto seed =
          fields.Integer("seed", std::numeric_limits<int64_t>::min(), std::numeric_limits<int64_t>::max())) {
    sampling->set_seed(static_cast<uint64_t>(*seed));
  }
  sampling->set_ignore_eos(fields.Bool("ignore_eos").value_or(false));
  sampling->set_choices(static_cast<uint32_t>(fields.Integer("n", 1, kMaxChoices).value_or(1)));
  ParseStop(fields, "stop", sampling);
  ParseEnds(fields, sampling);
  ParseLogitBias(fields, sampling);
}

void ParseBadWords(JsonFields& fields, std::vector<std::string>* words) {
  fields.Describe("bad_words", [] {
    const ordered_json word = {{"type", "string"}, {"minLength", 1}, {"maxLength", kMaxBadWordBytes}};
    return ordered_json{{"type", "array"}, {"items", word}, {"maxItems", kMaxBadWords}};
  });
  const ordered_json* list = fields.Find("bad_words");
  if (list == nullptr) return;
  if (!list->is_array() || list->size() > kMaxBadWords) {
    return fields.Fail("bad_words", absl::StrCat("must be a list of at most ", kMaxBadWords, " strings"));
  }
  for (const ordered_json& word : *list) {
    const auto* text = word.get_ptr<const std::string*>();
    if (text == nullptr || text->size() > kMaxBadWordBytes || absl::StripAsciiWhitespace(*text).empty()) {
      return fields.Fail(
          "bad_words", absl::StrCat("holds something else than a word of 1 to ", kMaxBadWordBytes, " bytes"));
    }
    words->push_back(*text);
  }
}

std::optional<ApiError> SpellBadWords(const Tokenizer& tokenizer, const std::vector<std::string>& words,
                                      v1::SamplingParams* sampling) {
  for (const std::string& word : words) {
    const absl::string_view bare = absl::StripLeadingAsciiWhitespace(word);
    std::vector<int32_t> alone;
    for (const absl::string_view before : {"", " "}) {
      auto ids = tokenizer.Encode(absl::StrCat(before, bare), /*add_special_tokens=*/false);
      if (!ids.ok()) return FromStatus("bad_words", ids.status());
      if (ids->empty() || *ids == alone) continue;
      sampling->add_bad_words()->mutable_ids()->Assign(ids->begin(), ids->end());
      alone = *std::move(ids);
    }
  }
  return std::nullopt;
}

void FillSampling(const GenerationConfig& defaults, v1::SamplingParams* sampling) {
  if (!sampling->has_temperature()) sampling->set_temperature(defaults.temperature.value_or(1.0));
  // As for a request's: 0 keeps the likeliest token alone.
  if (!sampling->has_top_p() && defaults.top_p) sampling->set_top_p(std::max(*defaults.top_p, 1e-9));
  if (!sampling->has_top_k() && defaults.top_k) sampling->set_top_k(*defaults.top_k);
  if (!sampling->has_min_p() && defaults.min_p) sampling->set_min_p(*defaults.min_p);
  if (!sampling->has_repetition_penalty() && defaults.repetition_penalty) {
    sampling->set_repetition_penalty(*defaults.repetition_penalty);
  }
  if (sampling->max_tokens() == 0 && !sampling->no_answer()) {
    sampling->set_max_tokens(defaults.max_new_tokens.value_or(0));
  }
}

std::optional<ApiError> CheckMinTokens(const v1::SamplingParams& sampling) {
  if ((sampling.max_tokens() == 0 && !sampling.no_answer()) || sampling.min_tokens() <= sampling.max_tokens())
    return std::nullopt;
  return InvalidParameter("min_tokens",
                          absl::StrCat("'min_tokens' is ", sampling.min_tokens(), ", which is more than the ",
                                       sampling.max_tokens(), " tokens that the answer may have"));
}

void ParseChatLogprobs(JsonFields& fields, v1::SamplingParams* sampling) {
  const bool wanted = fields.Bool("logprobs").value_or(false);
  const auto top = fields.Integer("top_logprobs", 0, kMaxTopLogprobs);
  if (top.value_or(0) > 0 && !wanted) fields.Fail("top_logprobs", "is only allowed when 'logprobs' is true");
  if (wanted) sampling->set_top_logprobs(static_cast<uint32_t>(top.value_or(0)));
}

void ParsePlainLogprobs(JsonFields& fields, v1::SamplingParams* sampling) {
  if (const auto top = fields.Integer("logprobs", 0, kMaxPlainLogprobs)) {
    sampling->set_top_logprobs(static_cast<uint32_t>(*top));
  }
}

}  // namespace aludel
