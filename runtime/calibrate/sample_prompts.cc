#include "runtime/calibrate/sample_prompts.h"

#include <zlib.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <random>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "nlohmann/json.hpp"
#include "runtime/status_macros.h"
#include "runtime/text/tokenizer/utf8.h"

namespace aludel {
namespace {

namespace fs = std::filesystem;

constexpr size_t kMaxFileBytes = size_t{1} << 20;
constexpr size_t kMaxPieceBytes = 1600;
constexpr size_t kMinPieceBytes = 300;
constexpr std::array<absl::string_view, 6> kQuestions = {
    "What is this text about?",           "Summarize this in two sentences.", "What should a reader do?",
    "Which names and numbers are in it?", "Explain this to a beginner.",      "What is likely to come next?"};

struct Files {
  std::vector<fs::path> texts;
  std::vector<fs::path> code;
};

bool IsText(const fs::path& path) {
  const std::string whole = path.filename().string();
  const absl::string_view name = absl::StripSuffix(whole, ".gz");
  for (const absl::string_view end : {".txt", ".md", ".rst"}) {
    if (absl::EndsWith(name, end)) return true;
  }
  for (const absl::string_view start : {"README", "NEWS", "FAQ"}) {
    if (absl::StartsWith(name, start)) return true;
  }
  return path.parent_path().filename() == "common-licenses";
}

bool IsCode(const fs::path& path) {
  const std::string end = path.extension().string();
  return end == ".py" || end == ".pm" || end == ".h";
}

// What cannot be read is as if it were not there.
void FindFiles(const fs::path& folder, Files* files) {
  std::error_code error;
  for (fs::directory_iterator at(folder, error), end; !error && at != end; at.increment(error)) {
    std::error_code unknown;
    const fs::file_status status = at->symlink_status(unknown);
    if (fs::is_directory(status)) FindFiles(at->path(), files);
    if (!fs::is_regular_file(status)) continue;
    if (IsText(at->path())) files->texts.push_back(at->path());
    if (IsCode(at->path())) files->code.push_back(at->path());
  }
}

// Empty where it cannot be read or is not UTF-8 alone. zlib reads what is not compressed as it is.
std::string ReadText(const fs::path& path) {
  gzFile file = gzopen(path.c_str(), "rb");
  if (file == nullptr) return "";
  const absl::Cleanup close = [&] { gzclose(file); };
  std::string text(kMaxFileBytes, '\0');
  const int length = gzread(file, text.data(), static_cast<unsigned>(text.size()));
  if (length <= 0) return "";
  text.resize(static_cast<size_t>(length));
  const size_t valid = FirstInvalidUtf8(text);
  // The last character of a longer file may have been cut.
  if (valid + 3 < text.size() || (valid < text.size() && text.size() < kMaxFileBytes)) return "";
  text.resize(valid);
  return text.find('\0') == std::string::npos ? text : "";
}

// Files in random order, of each in turn the next piece: long ones are not most of the prompts, and no two pieces overlap.
class Pieces {
 public:
  Pieces(std::vector<fs::path> paths, std::mt19937_64* random) : random_(random) {
    std::sort(paths.begin(), paths.end());  // folders have no order of their own
    std::shuffle(paths.begin(), paths.end(), *random_);
    for (fs::path& path : paths) files_.push_back({std::move(path)});
  }

  // None where nothing is left of any file.
  std::string Next() {
    for (size_t tried = 0; tried < files_.size(); ++tried) {
      std::string piece = Take(&files_[next_]);
      next_ = (next_ + 1) % files_.size();
      if (!piece.empty()) return piece;
    }
    return "";
  }
  size_t files() const { return files_.size(); }

 private:
  struct File {
    fs::path path;
    size_t taken = 0;  // bytes at its beginning that were used or passed over
    bool over = false;
  };

  std::string Take(File* file) {
    if (file->over) return "";
    const std::string text = ReadText(file->path);
    // Titles and tables of contents look alike everywhere: the first piece begins somewhere in the first half.
    if (file->taken == 0 && text.size() > 4 * kMaxPieceBytes) file->taken = (*random_)() % (text.size() / 2);
    size_t start = 0;
    if (file->taken > 0) start = std::min(text.size(), text.find('\n', file->taken)) + 1;
    file->over = start + kMinPieceBytes > text.size();
    if (file->over) return "";
    const size_t length = kMinPieceBytes + (*random_)() % (kMaxPieceBytes - kMinPieceBytes + 1);
    const std::string piece = text.substr(start, length);
    file->taken = start + piece.size();
    return piece.substr(0, FirstInvalidUtf8(piece));
  }

  std::vector<File> files_;
  std::mt19937_64* random_;
  size_t next_ = 0;
};

}  // namespace

std::vector<std::string> SystemTextRoots() {
  std::vector<std::string> roots = {"/usr/share/doc", "/usr/share/common-licenses", "/usr/share/perl",
                                    "/usr/share/perl5", "/usr/include"};
  std::error_code error;
  for (fs::directory_iterator at("/usr/lib", error), end; !error && at != end; at.increment(error)) {
    if (absl::StartsWith(at->path().filename().string(), "python3")) roots.push_back(at->path().string());
  }
  return roots;
}

absl::StatusOr<std::string> SamplePrompts(const SamplePromptsOptions& options) {
  if (options.count < 1) {
    return absl::InvalidArgumentError(absl::StrFormat("%d prompts, want 1 or more", options.count));
  }
  std::mt19937_64 random(options.seed);
  Files files;
  for (const std::string& root : options.roots) FindFiles(root, &files);
  Pieces texts(std::move(files.texts), &random);
  Pieces code(std::move(files.code), &random);
  std::string lines;
  for (int64_t i = 0; i < options.count; ++i) {
    const std::string piece = i % 4 == 2 ? code.Next() : texts.Next();
    if (piece.empty()) {
      return absl::NotFoundError(absl::StrFormat(
          "%s have %d files of text and %d of code: too little for %d prompts, ended after %d. Ask for "
          "fewer, or install documentation, as the packages debian-faq and python3 "
          "(images often leave out /usr/share/doc: path-exclude in /etc/dpkg/dpkg.cfg.d)",
          absl::StrJoin(options.roots, ", "), texts.files(), code.files(), options.count, i));
    }
    nlohmann::ordered_json line;
    if (i % 2 == 1) {
      line["context"] = piece;
      line["question"] = kQuestions[random() % kQuestions.size()];
    } else {
      line["text"] = piece;
    }
    absl::StrAppend(&lines, line.dump(), "\n");
  }
  return lines;
}

absl::Status WriteSamplePrompts(const SamplePromptsOptions& options, const std::string& file) {
  ALUDEL_ASSIGN_OR_RETURN(const std::string lines, SamplePrompts(options));
  const auto failed = [&] { return absl::ErrnoToStatus(errno, absl::StrCat("cannot write ", file)); };
  std::FILE* out = std::fopen(file.c_str(), "wx");
  if (out == nullptr && errno == EEXIST) {
    return absl::AlreadyExistsError(absl::StrCat(file, " is there already: name another, or remove it"));
  }
  if (out == nullptr) return failed();
  const bool written = std::fwrite(lines.data(), 1, lines.size(), out) == lines.size();
  if (std::fclose(out) == 0 && written) return absl::OkStatus();
  const absl::Status status = failed();
  std::remove(file.c_str());
  return status;
}

}  // namespace aludel
