#pragma once

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "runtime/codec/artifact/artifact.h"

namespace aludel {

// What settings name: a format of an artifact, as "NAME@N" the first N planes of one whose codes are embedded, or as "NAME@N+"
// all planes of it, the first N of all frames before the others.
struct NamedFormat {
  const ArtifactFormat* format = nullptr;  // in the manifest
  int planes = 0;                          // of the cut, 0: all
  int base_planes = 0;                     // that come first, 0: frames come whole
};

// A format that is called `name` goes before a cut of that name. Whether the format has so many planes is for its grids
// to tell. NotFound lists the formats that there are; InvalidArgument where no number of planes follows a format's name.
absl::StatusOr<NamedFormat> FindNamed(const ArtifactManifest& manifest, absl::string_view name);

}  // namespace aludel
