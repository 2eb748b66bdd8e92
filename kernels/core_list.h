#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace aludel {

// "0-3,8" as {0, 1, 2, 3, 8}, in the order given; "" is an empty list. InvalidArgument for anything else, and
// for a core named twice.
absl::StatusOr<std::vector<int>> ParseCoreList(absl::string_view text);

// Cores that the calling thread may run on, ascending.
std::vector<int> AllowedCores();

// Keeps the calling thread, and threads that it starts from then on, on these cores. FailedPrecondition where
// the kernel refuses, because one does not exist or is not this process' to use.
absl::Status KeepOnCores(absl::Span<const int> cores);

// Whole cores' worth of time that the control groups of this process leave it, at least 1; 0: no limit.
// `groups` is what /proc/self/cgroup says, `root` where control groups are mounted.
int CoresOfQuota(const std::string& groups = "/proc/self/cgroup", const std::string& root = "/sys/fs/cgroup");

}  // namespace aludel
