#include "runtime/calibrate/aludel/sensitivity_file.h"

#include <cstdio>
#include <filesystem>
#include <memory>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "runtime/codec/artifact/weight_file.h"
#include "runtime/status_macros.h"

namespace aludel {
namespace {

using FilePointer = std::unique_ptr<FILE, int (*)(FILE*)>;

std::string FileName(const Transformer& consumer, absl::Span<const std::vector<int32_t>> prompts,
                     absl::Span<const CacheColumns> ranges, const SensitivityOptions& options) {
  std::string key = absl::StrCat("sensitivity 1 ", consumer.hash(), " ", Name(consumer.options().compute),
                                 " ", options.max_answer_tokens, " ", options.samples, " ", options.max_norm,
                                 " ", options.head_tokens, " ", options.seed, "\n");
  for (const CacheColumns& range : ranges) absl::StrAppend(&key, range.first, "+", range.count, "\n");
  for (const std::vector<int32_t>& prompt : prompts) {
    const auto* bytes = reinterpret_cast<const char*>(prompt.data());
    absl::StrAppend(&key, prompt.size(), ":", absl::string_view(bytes, prompt.size() * sizeof(int32_t)));
  }
  return Sha256Hex({reinterpret_cast<const uint8_t*>(key.data()), key.size()}).substr(0, 24) + ".sensitivity";
}

// [prompts, tokens, limited, ids, (id, energy, count)..., ranges...], this machine's doubles.
std::vector<double> Flatten(const Sensitivity& sensitivity) {
  std::vector<double> values = {
      static_cast<double>(sensitivity.prompts), static_cast<double>(sensitivity.tokens),
      static_cast<double>(sensitivity.limited), static_cast<double>(sensitivity.by_id.size())};
  for (const auto& [id, sum] : sensitivity.by_id) {
    values.insert(values.end(), {static_cast<double>(id), sum.energy, static_cast<double>(sum.count)});
  }
  for (const Moments& range : sensitivity.ranges) {
    values.insert(values.end(), range.values.begin(), range.values.end());
  }
  return values;
}

// Nothing where the size is not that of a finished file.
std::optional<Sensitivity> Unflatten(const std::vector<double>& values,
                                     absl::Span<const CacheColumns> ranges) {
  constexpr size_t kHead = 4;
  size_t wanted = kHead;
  for (const CacheColumns& range : ranges) wanted += static_cast<size_t>(range.count * range.count);
  if (values.size() < wanted || static_cast<double>(values.size() - wanted) != 3 * values[3]) {
    return std::nullopt;
  }
  Sensitivity sensitivity;
  sensitivity.prompts = static_cast<int64_t>(values[0]);
  sensitivity.tokens = static_cast<int64_t>(values[1]);
  sensitivity.limited = static_cast<int64_t>(values[2]);
  const size_t ids = (values.size() - wanted) / 3;
  auto at = values.begin() + kHead;
  for (size_t i = 0; i < ids; ++i, at += 3) {
    sensitivity.by_id[static_cast<int32_t>(at[0])] = {at[1], static_cast<int64_t>(at[2])};
  }
  for (const CacheColumns& range : ranges) {
    const auto end = at + range.count * range.count;
    sensitivity.ranges.push_back({range.count, range.count, {at, end}});
    at = end;
  }
  return sensitivity;
}

std::vector<double> ReadDoubles(const std::string& path) {
  std::error_code error;
  const auto bytes = std::filesystem::file_size(path, error);
  const FilePointer file(error ? nullptr : std::fopen(path.c_str(), "rbe"), &std::fclose);
  if (file == nullptr) return {};
  std::vector<double> values(bytes / sizeof(double));
  values.resize(std::fread(values.data(), sizeof(double), values.size(), file.get()));
  return values;
}

absl::Status WriteDoubles(const std::string& path, const std::vector<double>& values) {
  const std::string partial = path + ".partial";
  FilePointer file(std::fopen(partial.c_str(), "wbe"), &std::fclose);
  const bool written =
      file != nullptr &&
      std::fwrite(values.data(), sizeof(double), values.size(), file.get()) == values.size() &&
      std::fclose(file.release()) == 0;
  if (!written || std::rename(partial.c_str(), path.c_str()) != 0) {
    return absl::UnavailableError(absl::StrCat("cannot write ", path));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Sensitivity> OpenSensitivity(const std::string& directory, const Transformer& consumer,
                                            absl::Span<const std::vector<int32_t>> prompts,
                                            absl::Span<const CacheColumns> ranges,
                                            const SensitivityOptions& options,
                                            const std::function<absl::StatusOr<Sensitivity>()>& measure) {
  const std::string path = absl::StrCat(directory, "/", FileName(consumer, prompts, ranges, options));
  std::optional<Sensitivity> known = Unflatten(ReadDoubles(path), ranges);
  if (known.has_value()) return *std::move(known);
  ALUDEL_ASSIGN_OR_RETURN(Sensitivity sensitivity, measure());
  ALUDEL_RETURN_IF_ERROR(WriteDoubles(path, Flatten(sensitivity)));
  return sensitivity;
}

}  // namespace aludel
