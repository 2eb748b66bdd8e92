#include "runtime/tool/html_policy.h"

#include <openssl/sha.h>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"

namespace aludel {

std::string InlineSources(absl::string_view html, absl::string_view tag) {
  const std::string open = absl::StrCat("<", tag, ">"), close = absl::StrCat("</", tag, ">");
  std::string sources;
  for (size_t begin = html.find(open); begin != absl::string_view::npos; begin = html.find(open, begin)) {
    begin += open.size();
    const size_t end = html.find(close, begin);
    const absl::string_view text = html.substr(begin, end == absl::string_view::npos ? end : end - begin);
    std::string digest(SHA256_DIGEST_LENGTH, '\0');
    SHA256(reinterpret_cast<const uint8_t*>(text.data()), text.size(),
           reinterpret_cast<uint8_t*>(digest.data()));
    absl::StrAppend(&sources, sources.empty() ? "" : " ", "'sha256-", absl::Base64Escape(digest), "'");
    begin += text.size();
  }
  return sources.empty() ? "'none'" : sources;
}

}  // namespace aludel
