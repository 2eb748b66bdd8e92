#include "runtime/codec/artifact/format_name.h"

#include "absl/strings/numbers.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"
#include "runtime/status_macros.h"

namespace aludel {

absl::StatusOr<NamedFormat> FindNamed(const ArtifactManifest& manifest, absl::string_view name) {
  const absl::StatusOr<const ArtifactFormat*> whole = manifest.Find(name);
  if (whole.ok()) return NamedFormat{*whole};
  const size_t at = name.rfind('@');
  if (at == absl::string_view::npos) return whole.status();
  NamedFormat named;
  ALUDEL_ASSIGN_OR_RETURN(named.format, manifest.Find(name.substr(0, at)));
  absl::string_view number = name.substr(at + 1);
  int& planes = absl::ConsumeSuffix(&number, "+") ? named.base_planes : named.planes;
  if (absl::SimpleAtoi(number, &planes) && planes >= 1) return named;
  return absl::InvalidArgumentError(
      absl::StrFormat("format \"%s\" does not end with a number of planes, as NAME@N and NAME@N+ do", name));
}

}  // namespace aludel
