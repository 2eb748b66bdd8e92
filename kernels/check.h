#pragma once

#include <cstdio>
#include <cstdlib>

// For mistakes of ours only: a broken invariant stops the process with its place and text. Bytes from a peer,
// a file or a request are never checked this way; they get an absl::Status.
#define ALUDEL_CHECK(condition)                                                          \
  do {                                                                                   \
    if (!(condition)) [[unlikely]] {                                                     \
      std::fprintf(stderr, "%s:%d: check failed: %s\n", __FILE__, __LINE__, #condition); \
      std::abort();                                                                      \
    }                                                                                    \
  } while (false)
