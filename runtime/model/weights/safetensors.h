#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "runtime/model/model_path.h"
#include "runtime/model/weights/file_map.h"

namespace aludel {

class LoraAdapter;

// One tensor of a mapped file. `data` lives as long as the SafetensorsFile it came from.
struct SafetensorsEntry {
  std::string dtype;  // "F32", "BF16", "F16", "I32", "I64", "U8", "F8_E4M3", ...
  std::vector<int64_t> shape;
  absl::Span<const uint8_t> data;

  int64_t elements() const;
};

// A read-only memory map of one .safetensors file, its header checked completely when it is opened: lengths,
// offsets in range and not overlapping, dtype sizes times shape equal to the byte range. Thread-safe. Errors
// name the file, the tensor, what was found and what was expected.
class SafetensorsFile {
 public:
  static absl::StatusOr<std::unique_ptr<SafetensorsFile>> Open(const std::string& path);

  const std::string& path() const { return map_->path(); }
  const std::map<std::string, SafetensorsEntry>& entries() const { return entries_; }
  const std::map<std::string, std::string>& metadata() const { return metadata_; }
  // The whole file, header included.
  FileMap& map() const { return *map_; }
  uint64_t size() const { return map_->size(); }
  // Where the data of one of these entries begins in the file.
  uint64_t OffsetOf(const SafetensorsEntry& entry) const {
    return static_cast<uint64_t>(entry.data.data() - map_->data());
  }
  // NotFound names the file and the tensor.
  absl::StatusOr<const SafetensorsEntry*> Find(const std::string& name) const;

 private:
  SafetensorsFile() = default;

  std::unique_ptr<FileMap> map_;
  std::map<std::string, SafetensorsEntry> entries_;
  std::map<std::string, std::string> metadata_;
};

// Parses and checks a header (the JSON after the 8-byte length) against `data_bytes` bytes of tensor data at
// `data`; the part of Open that sees hostile bytes, split out for tests and fuzzing.
absl::Status ParseSafetensorsHeader(absl::string_view header, const uint8_t* data, size_t data_bytes,
                                    const std::string& path, std::map<std::string, SafetensorsEntry>* entries,
                                    std::map<std::string, std::string>* metadata);

// All shards of a model directory: model.safetensors, or those that model.safetensors.index.json lists. With
// an adapter, its file too, whose tensors are not among the model's entries.
class ModelFiles {
 public:
  static absl::StatusOr<ModelFiles> Open(const ModelPath& path);
  ModelFiles(ModelFiles&&) noexcept;
  ModelFiles& operator=(ModelFiles&&) noexcept;
  ~ModelFiles();

  absl::StatusOr<const SafetensorsEntry*> Find(const std::string& name) const;
  bool Contains(const std::string& name) const { return index_.count(name) != 0; }
  const std::map<std::string, const SafetensorsEntry*>& entries() const { return index_; }
  const std::string& directory() const { return directory_; }
  // The adapter's, then the shards by name: what is small, and needed for every shard, is read first.
  const std::vector<std::unique_ptr<SafetensorsFile>>& files() const { return files_; }
  const LoraAdapter* adapter() const { return adapter_.get(); }  // nullptr: none
  // Index into files() of the file that holds this entry, which came from Find or belongs to the adapter.
  size_t FileOf(const SafetensorsEntry& entry) const { return file_of_.at(&entry); }

 private:
  ModelFiles();
  absl::Status OpenAdapter(const std::string& directory);

  std::string directory_;
  std::vector<std::unique_ptr<SafetensorsFile>> files_;
  std::map<std::string, const SafetensorsEntry*> index_;
  std::map<const SafetensorsEntry*, size_t> file_of_;
  std::unique_ptr<LoraAdapter> adapter_;
};

// One tensor to write.
struct SafetensorsTensor {
  std::string name;
  std::string dtype;
  std::vector<int64_t> shape;
  absl::Span<const uint8_t> data;
};

// Writes atomically (temporary file, fsync, rename). Tensors are laid out in the order given, 64-byte
// aligned start.
absl::Status WriteSafetensors(const std::string& path, absl::Span<const SafetensorsTensor> tensors,
                              const std::map<std::string, std::string>& metadata);

// The same for tensors that are not in memory. `source` gives the bytes of tensor `index` from `offset` on,
// as many as it likes but at least one; they must live until its next call.
struct SafetensorsSpec {
  std::string name;
  std::string dtype;
  std::vector<int64_t> shape;
  size_t bytes = 0;
};
using TensorSource = std::function<absl::StatusOr<absl::Span<const uint8_t>>(size_t index, size_t offset)>;
absl::Status StreamSafetensors(const std::string& path, absl::Span<const SafetensorsSpec> tensors,
                               const std::map<std::string, std::string>& metadata,
                               const TensorSource& source);

}  // namespace aludel
