#pragma once

#include <sys/stat.h>

#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace aludel {

// InvalidArgument, with what it is, for a path that is there and no regular file: opening a FIFO waits for a writer,
// perhaps for ever. Ok for one that is not there: opening it says so.
inline absl::Status CheckRegularFile(const std::string& path) {
  struct stat info = {};
  if (::stat(path.c_str(), &info) != 0 || S_ISREG(info.st_mode)) return absl::OkStatus();
  const char* what = S_ISDIR(info.st_mode)    ? "a directory"
                     : S_ISFIFO(info.st_mode) ? "a FIFO"
                     : S_ISSOCK(info.st_mode) ? "a socket"
                                              : "a device";
  return absl::InvalidArgumentError(absl::StrCat(path, ": is ", what, ", want a regular file"));
}

}  // namespace aludel
