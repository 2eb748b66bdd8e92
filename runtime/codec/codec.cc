#include "runtime/codec/codec.h"

#include "absl/strings/str_cat.h"
#include "runtime/codec/raw.h"

namespace aludel {

absl::StatusOr<std::unique_ptr<KvCodec>> OpenCodec(absl::string_view format, const std::string& artifact,
                                                   CodecSide side, const Transformer& model) {
  (void)side;
  if (format == "raw") return MakeRawCodec(model);
  return absl::NotFoundError(
      absl::StrCat("format \"", format, "\": artefact directory \"", artifact, "\" has none of that name"));
}

absl::StatusOr<std::vector<std::string>> ListFormats(const std::string&) {
  return std::vector<std::string>{"raw"};
}

}  // namespace aludel
