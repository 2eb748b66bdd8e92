#pragma once

#include <gtest/gtest.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "server/gateway/openai/completion_request.h"

namespace aludel::completion_testing {

inline CompletionRequest Chat(const std::string& fields) {
  CompletionRequest request;
  const auto error = ParseChatRequest(
      absl::StrCat(R"({"model": "m", "messages": [{"role": "user", "content": "hi"}])", fields, "}"),
      &request);
  EXPECT_FALSE(error) << error->message;
  return request;
}

inline ApiError ChatError(const std::string& fields) {
  CompletionRequest request;
  const auto error = ParseChatRequest(
      absl::StrCat(R"({"model": "m", "messages": [{"role": "user", "content": "hi"}])", fields, "}"),
      &request);
  EXPECT_TRUE(error) << fields;
  return error.value_or(ApiError{});
}

inline ApiError BodyError(absl::string_view body) {
  CompletionRequest request;
  const auto error = ParseChatRequest(body, &request);
  EXPECT_TRUE(error) << body;
  return error.value_or(ApiError{});
}

}  // namespace aludel::completion_testing
