#pragma once

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "runtime/codec/artifact/artifact.h"

namespace aludel {

// What settings name: a format of an artifact, or as "NAME@N" the first N planes of one whose codes are embedded.
struct NamedFormat {
  const ArtifactFormat* format = nullptr;  // in the manifest
  int planes = 0;                          // 0: all
};

// A format that is called `name` goes before a cut of that name. Whether the format has so many planes is for its grids
// to tell. NotFound lists the formats that there are; InvalidArgument where no number of planes follows a format's name.
absl::StatusOr<NamedFormat> FindNamed(const ArtifactManifest& manifest, absl::string_view name);

}  // namespace aludel
