#include "runtime/model/model_path.h"

#include <filesystem>
#include <system_error>

#include "absl/strings/str_cat.h"

namespace aludel {
namespace {

bool IsDirectory(absl::string_view path) {
  std::error_code ignored;
  return std::filesystem::is_directory(std::filesystem::path(path.begin(), path.end()), ignored);
}

std::string LastPart(std::string path) {
  while (path.size() > 1 && path.back() == '/') path.pop_back();
  return std::filesystem::path(path).filename().string();
}

}  // namespace

ModelPath ModelPath::Parse(absl::string_view text) {
  if (IsDirectory(text)) return ModelPath(std::string(text));
  // Where only the base exists, the error to come is about the adapter.
  size_t best = absl::string_view::npos;
  for (size_t plus = text.find('+'); plus != absl::string_view::npos; plus = text.find('+', plus + 1)) {
    // "BASE+" is a forgotten adapter, not the base.
    if (plus + 1 == text.size() || !IsDirectory(text.substr(0, plus))) continue;
    best = plus;
    if (IsDirectory(text.substr(plus + 1))) break;
  }
  if (best == absl::string_view::npos) return ModelPath(std::string(text));
  return {std::string(text.substr(0, best)), std::string(text.substr(best + 1))};
}

std::string ModelPath::Name() const {
  return adapter.empty() ? LastPart(base) : absl::StrCat(LastPart(base), "+", LastPart(adapter));
}

}  // namespace aludel
