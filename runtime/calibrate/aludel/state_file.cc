#include "runtime/calibrate/aludel/state_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "runtime/calibrate/fit/capture.h"
#include "runtime/codec/artifact/weight_file.h"
#include "runtime/status_macros.h"

namespace aludel {
namespace {

using FilePointer = std::unique_ptr<FILE, int (*)(FILE*)>;

absl::Status Errno(const std::string& path) {
  return absl::UnavailableError(absl::StrCat(path, ": ", std::strerror(errno)));
}

// What a file is made of.
struct StateText {
  std::vector<absl::Span<const int32_t>> ids;       // [prompts or passages]
  std::vector<absl::Span<const int64_t>> branches;  // [passages], empty for prompts
  int64_t head = 0;

  // Tokens behind the first `head` of each.
  int64_t Rows(int64_t head) const {
    int64_t rows = 0;
    for (const auto& prompt : ids) rows += std::max<int64_t>(0, static_cast<int64_t>(prompt.size()) - head);
    return rows;
  }
  absl::Span<const int64_t> Branches(size_t i) const {
    return branches.empty() ? absl::Span<const int64_t>() : branches[i];
  }
};

// Names what a file holds, all but how many layers' H: the model, the arithmetic, the prompts.
std::string KeyOf(const Transformer& model, const StateText& text) {
  std::string key =
      absl::StrCat("states 3 ", model.hash(), " ", Name(model.options().compute), " ", text.head, "\n");
  for (const auto& prompt : text.ids) {
    const auto* bytes = reinterpret_cast<const char*>(prompt.data());
    absl::StrAppend(&key, prompt.size(), ":", absl::string_view(bytes, prompt.size() * sizeof(int32_t)));
  }
  for (const auto& branches : text.branches) absl::StrAppend(&key, "\n", absl::StrJoin(branches, " "));
  return Sha256Hex({reinterpret_cast<const uint8_t*>(key.data()), key.size()}).substr(0, 24);
}

std::string PathOf(const std::string& directory, const std::string& key, int side_layers) {
  return absl::StrCat(directory, "/", key, "-", side_layers, ".states");
}

// H of how many layers the leanest file has that serves `side_layers`; `side_layers` where there is none.
int FindSideLayers(const std::string& directory, const std::string& key, int side_layers, int layers) {
  std::error_code error;
  for (int sides = side_layers; sides <= layers; ++sides) {
    if (std::filesystem::exists(PathOf(directory, key, sides), error)) return sides;
  }
  return side_layers;
}

void AppendColumns(const std::vector<float>& rows, int64_t row, int64_t cols, std::vector<Bf16>* out) {
  const float* from = rows.data() + row * cols;
  for (int64_t j = 0; j < cols; ++j) out->push_back(ToBf16(from[j]));
}

// Where the next row goes: head tokens and those that travel lie apart in one file.
struct RowWriter {
  FilePointer head;
  FilePointer travelling;
};

absl::StatusOr<RowWriter> OpenWriter(const std::string& path, int64_t head_offset) {
  RowWriter writer{{std::fopen(path.c_str(), "wbe"), &std::fclose}, {nullptr, &std::fclose}};
  if (writer.head == nullptr) return Errno(path);
  writer.travelling.reset(std::fopen(path.c_str(), "r+be"));
  if (writer.travelling == nullptr || ::fseeko(writer.head.get(), head_offset, SEEK_SET) != 0) {
    return Errno(path);
  }
  return writer;
}

absl::Status WritePrompt(const std::vector<CapturedLayer>& captured, const StateLayout& layout,
                         int64_t tokens, int64_t head, const RowWriter& writer, const std::string& path) {
  std::vector<Bf16> row;
  for (int64_t t = 0; t < tokens; ++t) {
    FILE* const file = t < head ? writer.head.get() : writer.travelling.get();
    row.clear();
    for (const CapturedLayer& layer : captured) {
      AppendColumns(layer.k, t, layout.kv_dim, &row);
      AppendColumns(layer.v, t, layout.kv_dim, &row);
    }
    for (int l = 0; l < layout.side_layers; ++l) AppendColumns(captured[l].h, t, layout.hidden, &row);
    if (std::fwrite(row.data(), sizeof(Bf16), row.size(), file) != row.size()) return Errno(path);
  }
  return absl::OkStatus();
}

absl::Status WriteStates(const std::string& path, Transformer& model, const StateText& text,
                         const StateLayout& layout, absl::string_view stage,
                         const CalibrationProgress& progress) {
  const std::string partial = path + ".partial";
  const int64_t row_bytes = layout.columns() * static_cast<int64_t>(sizeof(Bf16));
  ALUDEL_ASSIGN_OR_RETURN(const RowWriter writer, OpenWriter(partial, text.Rows(text.head) * row_bytes));
  int64_t longest = 1;
  for (size_t i = 0; i < text.ids.size(); ++i) {
    longest = std::max(longest, PromptCapture::PageTokens(text.ids[i].size(), text.Branches(i).size()));
  }
  std::vector<CapturedLayer> captured(layout.layers);
  ALUDEL_ASSIGN_OR_RETURN(const auto capture,
                          PromptCapture::Create(model, CaptureHalf::kWhole, longest, &captured));
  const auto count = static_cast<int64_t>(text.ids.size());
  for (int64_t i = 0; i < count; ++i) {
    if (!progress(stage, i, count)) return absl::CancelledError("calibration was interrupted");
    ALUDEL_RETURN_IF_ERROR(capture->Run(text.ids[i], text.Branches(i)));
    const auto tokens = static_cast<int64_t>(text.ids[i].size());
    ALUDEL_RETURN_IF_ERROR(WritePrompt(captured, layout, tokens, text.head, writer, partial));
  }
  progress(stage, count, count);
  if (std::fflush(writer.head.get()) != 0 || std::fflush(writer.travelling.get()) != 0) return Errno(partial);
  if (std::rename(partial.c_str(), path.c_str()) != 0) return Errno(path);
  return absl::OkStatus();
}

}  // namespace

StateFile::~StateFile() { ::munmap(const_cast<uint8_t*>(map_), bytes_); }

void StateFile::Read(int64_t row, int64_t begin, int64_t count, float* out) const {
  const uint8_t* from = map_ + (row * layout_.columns() + begin) * static_cast<int64_t>(sizeof(Bf16));
  for (int64_t j = 0; j < count; ++j) {
    const uint32_t bits = static_cast<uint32_t>(from[2 * j] | from[2 * j + 1] << 8) << 16;
    std::memcpy(out + j, &bits, sizeof(bits));
  }
}

class StateJob {
 public:
  static absl::StatusOr<std::unique_ptr<StateFile>> Open(const std::string& directory, Transformer& model,
                                                         const StateText& text, int side_layers,
                                                         absl::string_view stage,
                                                         const CalibrationProgress& progress) {
    const ModelConfig& config = model.config();
    std::error_code error;
    std::filesystem::create_directories(directory, error);
    if (error) return absl::UnavailableError(absl::StrCat(directory, ": ", error.message()));
    const std::string key = KeyOf(model, text);
    side_layers = FindSideLayers(directory, key, side_layers, config.layers);
    const StateLayout layout{config.layers, side_layers, config.kv_dim(), config.hidden};
    const std::string path = PathOf(directory, key, side_layers);
    if (!std::filesystem::exists(path, error)) {
      ALUDEL_RETURN_IF_ERROR(WriteStates(path, model, text, layout, stage, progress));
    }
    const size_t bytes = StateBytes(config, side_layers, text.Rows(0));
    const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
    if (fd < 0) return Errno(path);
    struct stat status = {};
    const bool whole = ::fstat(fd, &status) == 0 && static_cast<size_t>(status.st_size) == bytes;
    void* map = whole ? ::mmap(nullptr, bytes, PROT_READ, MAP_SHARED, fd, 0) : MAP_FAILED;
    ::close(fd);
    if (!whole) {
      return absl::DataLossError(
          absl::StrFormat("%s is %d bytes, want %d: delete it and run again", path, status.st_size, bytes));
    }
    if (map == MAP_FAILED) return Errno(path);
    return std::unique_ptr<StateFile>(
        new StateFile(layout, text.Rows(text.head), text.head, static_cast<const uint8_t*>(map), bytes));
  }
};

absl::StatusOr<std::unique_ptr<StateFile>> OpenStates(const std::string& directory, Transformer& model,
                                                      absl::Span<const std::vector<int32_t>> prompts,
                                                      int side_layers, int64_t head, absl::string_view stage,
                                                      const CalibrationProgress& progress) {
  const StateText text{{prompts.begin(), prompts.end()}, {}, head};
  if (text.Rows(head) == 0) {
    return absl::InvalidArgumentError(
        absl::StrFormat("no calibration prompt is longer than the %d tokens at its head that are left to the "
                        "consumer: give longer prompts or fewer --head-tokens",
                        head));
  }
  return StateJob::Open(directory, model, text, side_layers, stage, progress);
}

absl::StatusOr<std::unique_ptr<StateFile>> OpenPassageStates(const std::string& directory, Transformer& model,
                                                             absl::Span<const Passage> passages,
                                                             int side_layers, absl::string_view stage,
                                                             const CalibrationProgress& progress) {
  StateText text;
  for (const Passage& passage : passages) {
    text.ids.push_back(passage.ids);
    text.branches.push_back(passage.branches);
  }
  return StateJob::Open(directory, model, text, side_layers, stage, progress);
}

std::vector<int32_t> RowIds(absl::Span<const std::vector<int32_t>> prompts, int64_t head) {
  std::vector<int32_t> ids;
  for (const std::vector<int32_t>& prompt : prompts) {
    const int64_t skipped = std::min(head, static_cast<int64_t>(prompt.size()));
    ids.insert(ids.end(), prompt.begin() + skipped, prompt.end());
  }
  return ids;
}

size_t StateBytes(const ModelConfig& config, int side_layers, int64_t tokens) {
  const StateLayout layout{config.layers, side_layers, config.kv_dim(), config.hidden};
  return static_cast<size_t>(tokens * layout.columns()) * sizeof(Bf16);
}

}  // namespace aludel
