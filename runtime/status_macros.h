#pragma once

#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

// Early return on error, for code in which most calls can fail. Debian 12's Abseil has no such macros.
#define ALUDEL_RETURN_IF_ERROR(expr)                                                    \
  do {                                                                                  \
    if (absl::Status aludel_status = (expr); !aludel_status.ok()) return aludel_status; \
  } while (false)

#define ALUDEL_CONCAT_INNER(a, b) a##b
#define ALUDEL_CONCAT(a, b) ALUDEL_CONCAT_INNER(a, b)

// ALUDEL_ASSIGN_OR_RETURN(auto file, SafetensorsFile::Open(path));
#define ALUDEL_ASSIGN_OR_RETURN(lhs, expr) \
  ALUDEL_ASSIGN_OR_RETURN_INNER(ALUDEL_CONCAT(aludel_statusor_, __LINE__), lhs, expr)
#define ALUDEL_ASSIGN_OR_RETURN_INNER(statusor, lhs, expr) \
  auto statusor = (expr);                                  \
  if (!statusor.ok()) return std::move(statusor).status(); \
  lhs = *std::move(statusor)
