#include "runtime/codec/artifact/artifact_versions.h"

#include <fcntl.h>
#include <openssl/evp.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <set>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "kernels/check.h"
#include "runtime/status_macros.h"

namespace aludel {
namespace {

namespace fs = std::filesystem;

constexpr char kCopyPrefix[] = ".copy-";
constexpr int64_t kMaxVersion = 999'999'999;
constexpr absl::Duration kLockLook = absl::Milliseconds(50);

absl::Status Failed(const std::string& path, int error) {
  return absl::UnavailableError(absl::StrCat(path, ": ", std::strerror(error)));
}

std::string WithoutSlash(std::string path) {
  while (path.size() > 1 && path.back() == '/') path.pop_back();
  return path;
}

bool IsLink(const fs::path& path) {
  std::error_code error;
  return fs::is_symlink(fs::symlink_status(path, error));
}

bool HasManifest(const fs::path& directory) {
  std::error_code error;
  return fs::exists(directory / kArtifactManifest, error);
}

// A directory of versions has this folder, and is no artifact itself.
bool IsVersions(const std::string& directory) {
  std::error_code error;
  return fs::is_directory(fs::path(directory) / kVersionsFolder, error) && !HasManifest(directory);
}

// Nothing for a name that is no version's.
std::optional<int64_t> NumberOf(const std::string& name) {
  int64_t number = 0;
  const bool digits = !name.empty() && std::all_of(name.begin(), name.end(), absl::ascii_isdigit);
  if (!digits || !absl::SimpleAtoi(name, &number) || number < 1 || number > kMaxVersion) return std::nullopt;
  return number;
}

std::string NameOf(int64_t number) { return absl::StrFormat("%04d", number); }

// What the link in `directory` leads to, as a version's name; "": it is not there, or leads elsewhere.
std::string Target(const std::string& directory, const char* link) {
  std::error_code error;
  const fs::path target = fs::read_symlink(fs::path(directory) / link, error);
  if (error || target.parent_path() != kVersionsFolder) return "";
  return target.filename();
}

// What is written before is on disk before what is written behind it.
absl::Status Sync(const std::string& path) {
  const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0) return Failed(path, errno);
  const absl::Cleanup close = [file] { ::close(file); };
  return ::fsync(file) == 0 ? absl::OkStatus() : Failed(path, errno);
}

absl::Status SetLink(const std::string& directory, const char* link, const std::string& name) {
  const std::string place = absl::StrCat(directory, "/", link);
  const std::string fresh = absl::StrCat(directory, "/.", link, ".new");
  std::error_code error;
  if (fs::exists(fs::symlink_status(place, error)) && !IsLink(place)) {
    return absl::FailedPreconditionError(absl::StrCat(place, " is no link: it is left as it is"));
  }
  fs::remove(fresh, error);  // of one that was cut off
  fs::create_symlink(fs::path(kVersionsFolder) / name, fresh, error);
  if (error) return absl::UnavailableError(absl::StrCat(fresh, ": ", error.message()));
  if (::rename(fresh.c_str(), place.c_str()) != 0) return Failed(place, errno);
  return Sync(directory);
}

absl::Status Switch(const std::string& directory, const std::string& name) {
  const std::string old = Target(directory, kCurrentLink);
  if (old == name) return absl::OkStatus();
  // A cut between the two leaves `previous` at what is current still: RollBackVersion says so, and does nothing wrong.
  if (!old.empty()) ALUDEL_RETURN_IF_ERROR(SetLink(directory, kPreviousLink, old));
  return SetLink(directory, kCurrentLink, name);
}

ArtifactVersion Describe(const std::string& directory, const std::string& name) {
  ArtifactVersion version{.number = NumberOf(name).value_or(0),
                          .name = name,
                          .directory = absl::StrCat(directory, "/", kVersionsFolder, "/", name)};
  version.current = Target(directory, kCurrentLink) == name;
  version.previous = Target(directory, kPreviousLink) == name;
  version.status = LoadArtifactManifest(version.directory).status();
  return version;
}

// Held until the result goes, or the process ends.
class Lock {
 public:
  static absl::StatusOr<Lock> Take(const std::string& directory, absl::Duration patience) {
    const std::string path = absl::StrCat(directory, "/.lock");
    const int file = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
    if (file < 0) return Failed(path, errno);
    Lock lock(file);
    const auto begin = std::chrono::steady_clock::now();
    bool told = false;
    while (::flock(file, LOCK_EX | LOCK_NB) != 0) {
      if (errno == EINTR) continue;
      if (errno != EWOULDBLOCK) return Failed(path, errno);
      if (absl::FromChrono(std::chrono::steady_clock::now() - begin) >= patience) {
        return absl::UnavailableError(
            absl::StrCat(path, " is held by another process that publishes or rolls back, for ",
                         absl::FormatDuration(patience), " by now"));
      }
      if (!std::exchange(told, true)) {
        std::fprintf(stderr, "waiting for %s, which another process holds\n", path.c_str());
      }
      absl::SleepFor(kLockLook);
    }
    return lock;
  }
  Lock(Lock&& other) noexcept : file_(std::exchange(other.file_, -1)) {}
  Lock& operator=(Lock&&) = delete;
  ~Lock() {
    if (file_ >= 0) ::close(file_);
  }

 private:
  explicit Lock(int file) : file_(file) {}
  int file_;
};

absl::StatusOr<std::string> HashFile(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) return absl::NotFoundError(absl::StrCat(path, ": ", std::strerror(errno)));
  const std::unique_ptr<EVP_MD_CTX, void (*)(EVP_MD_CTX*)> context(EVP_MD_CTX_new(), &EVP_MD_CTX_free);
  ALUDEL_CHECK(EVP_DigestInit_ex(context.get(), EVP_sha256(), nullptr) == 1);
  std::vector<char> buffer(size_t{1} << 20);
  while (in) {
    in.read(buffer.data(), static_cast<std::streamsize>(buffer.size()));
    ALUDEL_CHECK(EVP_DigestUpdate(context.get(), buffer.data(), static_cast<size_t>(in.gcount())) == 1);
  }
  if (in.bad()) return absl::UnavailableError(absl::StrCat(path, ": cannot be read"));
  std::string digest(EVP_MAX_MD_SIZE, '\0');
  unsigned int size = 0;
  ALUDEL_CHECK(EVP_DigestFinal_ex(context.get(), reinterpret_cast<uint8_t*>(digest.data()), &size) == 1);
  digest.resize(size);
  return absl::BytesToHexString(digest);
}

// Each once: decoders of several consumers may be one file.
std::vector<ArtifactFile> FilesOf(const ArtifactManifest& manifest) {
  std::vector<ArtifactFile> files;
  std::set<std::pair<std::string, std::string>> seen;
  const auto add = [&](const ArtifactFile& file) {
    if (seen.emplace(file.file, file.sha256).second) files.push_back(file);
  };
  for (const ArtifactFormat& format : manifest.formats) {
    add(format.encoder);
    for (const ArtifactDecoder& decoder : format.decoders) add(decoder.file);
  }
  for (const ArtifactControl& control : manifest.controls) {
    for (const ArtifactDecoder& decoder : control.decoders) add(decoder.file);
  }
  return files;
}

absl::Status CopyFile(const std::string& from, const std::string& to) {
  std::error_code error;
  fs::copy_file(from, to, fs::copy_options::overwrite_existing, error);
  if (error) return absl::UnavailableError(absl::StrCat(from, ": ", error.message()));
  fs::permissions(to, static_cast<fs::perms>(0644), error);
  return Sync(to);
}

// Into a folder of its own, which is the caller's to remove.
absl::StatusOr<std::string> CopyArtifact(const ArtifactManifest& manifest, const std::string& versions) {
  std::string copy = absl::StrCat(versions, "/", kCopyPrefix, "XXXXXX");
  if (::mkdtemp(copy.data()) == nullptr) return Failed(copy, errno);
  std::error_code error;
  fs::permissions(copy, static_cast<fs::perms>(0755), error);
  std::set<std::string> names = {kArtifactManifest};
  for (const ArtifactFile& file : FilesOf(manifest)) names.insert(file.file);
  for (const std::string& name : names) {
    const absl::Status copied =
        CopyFile(absl::StrCat(manifest.directory, "/", name), absl::StrCat(copy, "/", name));
    if (copied.ok()) continue;
    fs::remove_all(copy, error);
    return copied;
  }
  return copy;
}

// Of those that were cut off; the lock is held.
void RemoveCopies(const std::string& versions) {
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(versions, error)) {
    if (entry.path().filename().string().rfind(kCopyPrefix, 0) != 0) continue;
    std::error_code ignored;
    fs::remove_all(entry.path(), ignored);
  }
}

// Gives `partial` the number behind the last one and makes it current; the lock is held.
absl::StatusOr<ArtifactVersion> Place(const std::string& directory, const std::string& partial) {
  const std::string versions = absl::StrCat(directory, "/", kVersionsFolder);
  int64_t last = 0;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(versions, error)) {
    last = std::max(last, NumberOf(entry.path().filename()).value_or(0));
  }
  if (error) return absl::UnavailableError(absl::StrCat(versions, ": ", error.message()));
  const std::string name = NameOf(last + 1);
  const std::string place = absl::StrCat(versions, "/", name);
  // Its files, too: some may be copies that were never synced.
  for (const auto& entry : fs::directory_iterator(partial, error)) {
    ALUDEL_RETURN_IF_ERROR(Sync(entry.path()));
  }
  if (error) return absl::UnavailableError(absl::StrCat(partial, ": ", error.message()));
  ALUDEL_RETURN_IF_ERROR(Sync(partial));
  if (::rename(partial.c_str(), place.c_str()) != 0) return Failed(place, errno);
  ALUDEL_RETURN_IF_ERROR(Sync(versions));
  ALUDEL_RETURN_IF_ERROR(Switch(directory, name));
  return Describe(directory, name);
}

absl::Status CheckVersions(const std::string& directory) {
  if (IsVersions(directory)) return absl::OkStatus();
  return absl::NotFoundError(absl::StrCat(directory, " is no directory of versions: want a folder \"",
                                          kVersionsFolder, "\" in it, and no ", kArtifactManifest));
}

}  // namespace

absl::StatusOr<std::string> ResolveArtifact(const std::string& location) {
  if (location.empty()) return location;
  fs::path path = WithoutSlash(location);
  if (!IsLink(path) && IsVersions(path)) path /= kCurrentLink;
  std::string found = location;
  // A link to a directory of versions leads on to its current one.
  for (int links = 0; IsLink(path); ++links) {
    std::error_code error;
    const fs::path resolved = fs::canonical(path, error);
    if (error || links > 1) {
      return absl::NotFoundError(absl::StrCat(
          path.string(),
          " leads to no artifact: ", error ? error.message() : "it leads to directories of versions"));
    }
    found = resolved.string();
    path = IsVersions(found) ? resolved / kCurrentLink : resolved;
  }
  return found;
}

bool FollowsVersions(const std::string& location) {
  if (location.empty()) return false;
  const std::string path = WithoutSlash(location);
  return IsLink(path) || IsVersions(path);
}

std::optional<std::string> VersionsOf(const std::string& location) {
  if (location.empty()) return std::nullopt;
  const fs::path path = WithoutSlash(location);
  if (IsVersions(path)) return path.string();
  if (path.filename() != kCurrentLink || !IsLink(path)) return std::nullopt;
  const std::string parent = path.parent_path().empty() ? "." : path.parent_path().string();
  if (IsVersions(parent)) return parent;
  return std::nullopt;
}

absl::StatusOr<std::string> HashManifest(const std::string& directory) {
  return HashFile(absl::StrCat(directory, "/", kArtifactManifest));
}

absl::Status VerifyArtifact(const ArtifactManifest& manifest) {
  for (const ArtifactFile& file : FilesOf(manifest)) {
    const std::string path = absl::StrCat(manifest.directory, "/", file.file);
    ALUDEL_ASSIGN_OR_RETURN(const std::string found, HashFile(path));
    if (found != file.sha256) {
      return absl::DataLossError(
          absl::StrCat(path, " has SHA-256 ", found, ", the manifest says ", file.sha256));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<ArtifactVersion>> ListVersions(const std::string& directory) {
  ALUDEL_RETURN_IF_ERROR(CheckVersions(directory));
  std::vector<ArtifactVersion> versions;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(fs::path(directory) / kVersionsFolder, error)) {
    const std::string name = entry.path().filename();
    if (NumberOf(name)) versions.push_back(Describe(directory, name));
  }
  if (error) return absl::UnavailableError(absl::StrCat(directory, ": ", error.message()));
  std::sort(versions.begin(), versions.end(),
            [](const ArtifactVersion& a, const ArtifactVersion& b) { return a.number < b.number; });
  return versions;
}

absl::StatusOr<ArtifactVersion> PublishVersion(const std::string& directory, const std::string& source,
                                               absl::Duration patience) {
  ALUDEL_ASSIGN_OR_RETURN(const ArtifactManifest manifest, LoadArtifactManifest(source));
  if (HasManifest(directory)) {
    return absl::FailedPreconditionError(
        absl::StrCat(directory, " is an artifact itself: want a directory of versions, or a new one"));
  }
  const std::string versions = absl::StrCat(directory, "/", kVersionsFolder);
  std::error_code error;
  fs::create_directories(versions, error);
  if (error) return absl::UnavailableError(absl::StrCat(versions, ": ", error.message()));
  ALUDEL_ASSIGN_OR_RETURN(const Lock lock, Lock::Take(directory, patience));
  RemoveCopies(versions);
  ALUDEL_ASSIGN_OR_RETURN(const std::string copy, CopyArtifact(manifest, versions));
  const absl::Cleanup remove = [&copy] {
    std::error_code ignored;
    fs::remove_all(copy, ignored);  // nothing where it has been moved
  };
  ALUDEL_ASSIGN_OR_RETURN(const ArtifactManifest copied, LoadArtifactManifest(copy));
  ALUDEL_RETURN_IF_ERROR(VerifyArtifact(copied));
  return Place(directory, copy);
}

absl::StatusOr<ArtifactVersion> AdoptVersion(const std::string& directory, const std::string& partial) {
  ALUDEL_RETURN_IF_ERROR(CheckVersions(directory));
  ALUDEL_ASSIGN_OR_RETURN(const Lock lock, Lock::Take(directory, kPublishPatience));
  return Place(directory, partial);
}

absl::StatusOr<ArtifactVersion> RollBackVersion(const std::string& directory, const std::string& version,
                                                absl::Duration patience) {
  ALUDEL_RETURN_IF_ERROR(CheckVersions(directory));
  ALUDEL_ASSIGN_OR_RETURN(const Lock lock, Lock::Take(directory, patience));
  const std::string current = Target(directory, kCurrentLink);
  const std::string name = version.empty() ? Target(directory, kPreviousLink) : version;
  if (name.empty()) {
    return absl::FailedPreconditionError(absl::StrCat(directory, " has no previous version"));
  }
  if (version.empty() && name == current) {
    return absl::FailedPreconditionError(absl::StrCat(
        directory, ": ", name,
        " is the current version and the previous one, as a switch was cut off: name a version"));
  }
  if (!NumberOf(name)) return absl::InvalidArgumentError(absl::StrCat("\"", name, "\" is no version's name"));
  ALUDEL_ASSIGN_OR_RETURN(const ArtifactManifest manifest,
                          LoadArtifactManifest(absl::StrCat(directory, "/", kVersionsFolder, "/", name)));
  ALUDEL_RETURN_IF_ERROR(VerifyArtifact(manifest));
  ALUDEL_RETURN_IF_ERROR(Switch(directory, name));
  return Describe(directory, name);
}

}  // namespace aludel
