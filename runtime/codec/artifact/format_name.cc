#include "runtime/codec/artifact/format_name.h"

#include "absl/strings/numbers.h"
#include "absl/strings/str_format.h"
#include "runtime/status_macros.h"

namespace aludel {

absl::StatusOr<NamedFormat> FindNamed(const ArtifactManifest& manifest, absl::string_view name) {
  const absl::StatusOr<const ArtifactFormat*> whole = manifest.Find(name);
  if (whole.ok()) return NamedFormat{*whole};
  const size_t at = name.rfind('@');
  if (at == absl::string_view::npos) return whole.status();
  NamedFormat cut;
  ALUDEL_ASSIGN_OR_RETURN(cut.format, manifest.Find(name.substr(0, at)));
  if (absl::SimpleAtoi(name.substr(at + 1), &cut.planes) && cut.planes >= 1) return cut;
  return absl::InvalidArgumentError(
      absl::StrFormat("format \"%s\" does not end with a number of planes, as NAME@N does", name));
}

}  // namespace aludel
