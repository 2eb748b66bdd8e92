#include "runtime/calibrate/sample_prompts.h"

#include <zlib.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <random>
#include <set>

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

Files FindFiles(const std::vector<std::string>& roots) {
  Files files;
  for (const std::string& root : roots) {
    std::error_code error;  // what cannot be read is as if it were not there
    const auto options = fs::directory_options::skip_permission_denied;
    for (fs::recursive_directory_iterator at(root, options, error), end; !error && at != end;
         at.increment(error)) {
      std::error_code unknown;
      if (!fs::is_regular_file(at->symlink_status(unknown))) continue;
      if (IsText(at->path())) files.texts.push_back(at->path());
      if (IsCode(at->path())) files.code.push_back(at->path());
    }
  }
  return files;
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
  if (valid + 4 < text.size() || (valid < text.size() && text.size() < kMaxFileBytes)) return "";
  text.resize(valid);
  return text.find('\0') == std::string::npos ? text : "";
}

// Files in random order, of each in turn a piece, so that long ones are not most of the prompts.
class Pieces {
 public:
  Pieces(std::vector<fs::path> files, std::mt19937_64* random) : files_(std::move(files)), random_(random) {
    std::sort(files_.begin(), files_.end());  // folders have no order of their own
    std::shuffle(files_.begin(), files_.end(), *random_);
  }

  // None where a whole round found nothing new.
  std::string Next() {
    for (size_t tried = 0; tried < files_.size(); ++tried) {
      std::string piece = Cut(ReadText(files_[next_]));
      next_ = (next_ + 1) % files_.size();
      if (piece.size() >= kMinPieceBytes && seen_.insert(piece).second) return piece;
    }
    return "";
  }
  size_t files() const { return files_.size(); }

 private:
  std::string Cut(const std::string& text) {
    if (text.size() < kMinPieceBytes) return "";
    size_t start = (*random_)() % (text.size() - kMinPieceBytes + 1);
    start = text.rfind('\n', start) == std::string::npos ? 0 : text.rfind('\n', start) + 1;
    const size_t length = kMinPieceBytes + (*random_)() % (kMaxPieceBytes - kMinPieceBytes + 1);
    const std::string piece = text.substr(start, length);
    return piece.substr(0, FirstInvalidUtf8(piece));
  }

  std::vector<fs::path> files_;
  std::mt19937_64* random_;
  std::set<std::string> seen_;
  size_t next_ = 0;
};

}  // namespace

std::vector<std::string> SystemTextRoots() {
  std::vector<std::string> roots = {"/usr/share/doc", "/usr/share/common-licenses", "/usr/share/perl",
                                    "/usr/share/perl5", "/usr/include"};
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator("/usr/lib", error)) {
    if (absl::StartsWith(entry.path().filename().string(), "python3")) roots.push_back(entry.path().string());
  }
  return roots;
}

absl::StatusOr<std::string> SamplePrompts(const SamplePromptsOptions& options) {
  if (options.count < 1) {
    return absl::InvalidArgumentError(absl::StrFormat("%d prompts, want 1 or more", options.count));
  }
  std::mt19937_64 random(options.seed);
  Files files = FindFiles(options.roots);
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
  if (fs::exists(file)) {
    return absl::AlreadyExistsError(absl::StrCat(file, " is there already: name another, or remove it"));
  }
  ALUDEL_ASSIGN_OR_RETURN(const std::string lines, SamplePrompts(options));
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> out(std::fopen(file.c_str(), "wx"), std::fclose);
  if (out == nullptr) return absl::ErrnoToStatus(errno, absl::StrCat("cannot write ", file));
  if (std::fwrite(lines.data(), 1, lines.size(), out.get()) != lines.size() || std::fflush(out.get()) != 0) {
    return absl::ErrnoToStatus(errno, absl::StrCat("cannot write ", file));
  }
  return absl::OkStatus();
}

}  // namespace aludel
