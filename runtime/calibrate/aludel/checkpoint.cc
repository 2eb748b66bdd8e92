#include "runtime/calibrate/aludel/checkpoint.h"

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

namespace aludel {
namespace {

using FilePointer = std::unique_ptr<FILE, int (*)(FILE*)>;

}  // namespace

absl::Status SaveCheckpoint(const std::string& path, absl::Span<const double> course,
                            const WeightList& weights) {
  const std::string partial = path + ".partial";
  FilePointer file(std::fopen(partial.c_str(), "wbe"), &std::fclose);
  bool written = file != nullptr &&
                 std::fwrite(course.data(), sizeof(double), course.size(), file.get()) == course.size();
  for (const std::vector<float>* values : weights) {
    written =
        written && std::fwrite(values->data(), sizeof(float), values->size(), file.get()) == values->size();
  }
  written = written && std::fclose(file.release()) == 0;
  if (!written || std::rename(partial.c_str(), path.c_str()) != 0) {
    return absl::UnavailableError(absl::StrCat("cannot write ", path));
  }
  return absl::OkStatus();
}

bool LoadCheckpoint(const std::string& path, absl::Span<double> course, const WeightList& weights) {
  if (path.empty()) return false;
  uintmax_t wanted = course.size() * sizeof(double);
  for (const std::vector<float>* values : weights) wanted += values->size() * sizeof(float);
  std::error_code error;
  if (std::filesystem::file_size(path, error) != wanted || error) return false;
  const FilePointer file(std::fopen(path.c_str(), "rbe"), &std::fclose);
  std::vector<double> figures(course.size());
  bool read = file != nullptr &&
              std::fread(figures.data(), sizeof(double), figures.size(), file.get()) == figures.size();
  std::vector<std::vector<float>> all;
  for (const std::vector<float>* values : weights) {
    all.emplace_back(values->size());
    read = read && std::fread(all.back().data(), sizeof(float), values->size(), file.get()) == values->size();
  }
  if (!read) return false;
  std::copy(figures.begin(), figures.end(), course.begin());
  for (size_t i = 0; i < weights.size(); ++i) *weights[i] = std::move(all[i]);
  return true;
}

}  // namespace aludel
