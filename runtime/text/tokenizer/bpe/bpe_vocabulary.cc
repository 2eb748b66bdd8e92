#include "runtime/text/tokenizer/bpe/bpe_vocabulary.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "runtime/files/json_reader.h"

namespace aludel {
namespace {

using nlohmann::json;

constexpr uint64_t kMaxVocabulary = 1u << 24;

}  // namespace

absl::StatusOr<BpeVocabulary> BpeVocabulary::FromJson(const json& model, const std::string& origin) {
  const json* vocab = FindMember(model, "vocab");
  if (vocab == nullptr || !vocab->is_object() || vocab->empty() || vocab->size() > kMaxVocabulary) {
    return absl::InvalidArgumentError(absl::StrCat(origin, ": vocab is ",
                                                   vocab == nullptr ? "missing" : DescribeJson(*vocab),
                                                   ", want an object of 1 to ", kMaxVocabulary, " tokens"));
  }
  uint64_t largest = 0;
  for (const auto& [spelling, id] : vocab->items()) {
    if (!id.is_number_unsigned() || id.get<uint64_t>() >= kMaxVocabulary) {
      return absl::InvalidArgumentError(absl::StrCat(origin, ": vocab: id of \"", spelling, "\" is ",
                                                     DescribeJson(id), ", want 0 to ", kMaxVocabulary - 1));
    }
    largest = std::max(largest, id.get<uint64_t>());
  }
  BpeVocabulary made;
  made.spellings_.resize(largest + 1);
  std::vector<bool> taken(made.spellings_.size());
  for (const auto& [spelling, json_id] : vocab->items()) {
    const auto id = json_id.get<size_t>();
    if (taken[id]) {
      return absl::InvalidArgumentError(absl::StrCat(origin, ": vocab: id ", id, " belongs to \"", spelling,
                                                     "\" and to \"", made.spellings_[id], "\""));
    }
    taken[id] = true;
    made.spellings_[id] = spelling;
  }
  made.ids_.reserve(vocab->size());
  for (size_t id = 0; id < made.spellings_.size(); ++id) {
    if (taken[id]) made.ids_[made.spellings_[id]] = static_cast<int32_t>(id);
  }
  return made;
}

int32_t BpeVocabulary::Find(absl::string_view spelling) const {
  const auto it = ids_.find(spelling);
  return it == ids_.end() ? -1 : it->second;
}

}  // namespace aludel
