#pragma once

#include <fcntl.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <string>

#include "absl/strings/string_view.h"

namespace aludel {

// A directory for the files that a target reads, in memory where the system has such a place. Gone when the
// process ends.
class ScratchDirectory {
 public:
  ScratchDirectory() {
    path_ =
        std::filesystem::is_directory("/dev/shm") ? "/dev/shm/aludel_fuzz_XXXXXX" : "/tmp/aludel_fuzz_XXXXXX";
    if (::mkdtemp(path_.data()) == nullptr) std::abort();
  }
  ~ScratchDirectory() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }

  const std::string& path() const { return path_; }

  void Write(const std::string& name, absl::string_view bytes) const {
    const std::string file = path_ + "/" + name;
    const int fd = ::open(file.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
    if (fd < 0 || ::write(fd, bytes.data(), bytes.size()) != static_cast<ssize_t>(bytes.size())) std::abort();
    ::close(fd);
  }
  void Remove(const std::string& name) const { ::unlink((path_ + "/" + name).c_str()); }

 private:
  std::string path_;
};

}  // namespace aludel
