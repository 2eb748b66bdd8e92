#include "runtime/calibrate/aludel/checkpoint.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "runtime/codec/artifact/weight_file.h"

namespace aludel {
namespace {

using FilePointer = std::unique_ptr<FILE, int (*)(FILE*)>;

constexpr char kMagic[] = "aludel checkpoint 1\n";
constexpr size_t kMagicBytes = sizeof(kMagic) - 1;
constexpr size_t kHashBytes = 64;  // hexadecimal digits of SHA-256

template <typename T>
std::string HashOf(const T* values, size_t count) {
  return Sha256Hex({reinterpret_cast<const uint8_t*>(values), count * sizeof(T)});
}

// Of all numbers: of the hashes of their pieces, which lie apart.
std::string HashOfAll(absl::Span<const double> course, const std::vector<absl::Span<const float>>& weights) {
  std::string hashes = HashOf(course.data(), course.size());
  for (const absl::Span<const float> values : weights) hashes += HashOf(values.data(), values.size());
  return HashOf(hashes.data(), hashes.size());
}

template <typename T>
bool Write(const T* values, size_t count, FILE* file) {
  return std::fwrite(values, sizeof(T), count, file) == count;
}

template <typename T>
bool Read(T* values, size_t count, FILE* file) {
  return std::fread(values, sizeof(T), count, file) == count;
}

}  // namespace

absl::Status SaveCheckpoint(const std::string& path, absl::Span<const double> course,
                            const WeightList& weights) {
  std::vector<absl::Span<const float>> pieces;
  for (const std::vector<float>* values : weights) pieces.emplace_back(*values);
  const std::string hash = HashOfAll(course, pieces);
  const std::string partial = path + ".partial";
  FilePointer file(std::fopen(partial.c_str(), "wbe"), &std::fclose);
  bool written = file != nullptr && Write(kMagic, kMagicBytes, file.get()) &&
                 Write(hash.data(), kHashBytes, file.get()) &&
                 Write(course.data(), course.size(), file.get());
  for (const absl::Span<const float> values : pieces) {
    written = written && Write(values.data(), values.size(), file.get());
  }
  // A name must not come to the disk before what it names.
  written = written && std::fflush(file.get()) == 0 && ::fsync(::fileno(file.get())) == 0;
  written = written && std::rename(partial.c_str(), path.c_str()) == 0;
  if (written) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat("cannot write ", path, ": ", std::strerror(errno),
                                             ": make room there, or name another disk with --work"));
}

bool LoadCheckpoint(const std::string& path, absl::Span<double> course, const WeightList& weights) {
  if (path.empty()) return false;
  uintmax_t wanted = kMagicBytes + kHashBytes + course.size() * sizeof(double);
  for (const std::vector<float>* values : weights) wanted += values->size() * sizeof(float);
  std::error_code error;
  if (std::filesystem::file_size(path, error) != wanted || error) return false;
  const FilePointer file(std::fopen(path.c_str(), "rbe"), &std::fclose);
  std::string magic(kMagicBytes, '\0'), hash(kHashBytes, '\0');
  std::vector<double> figures(course.size());
  bool read = file != nullptr && Read(magic.data(), kMagicBytes, file.get()) && magic == kMagic &&
              Read(hash.data(), kHashBytes, file.get()) && Read(figures.data(), figures.size(), file.get());
  std::vector<std::vector<float>> all;
  for (const std::vector<float>* values : weights) {
    all.emplace_back(values->size());
    read = read && Read(all.back().data(), values->size(), file.get());
  }
  if (!read) return false;
  std::vector<absl::Span<const float>> pieces(all.begin(), all.end());
  if (HashOfAll(figures, pieces) != hash) return false;
  std::copy(figures.begin(), figures.end(), course.begin());
  for (size_t i = 0; i < weights.size(); ++i) *weights[i] = std::move(all[i]);
  return true;
}

}  // namespace aludel
