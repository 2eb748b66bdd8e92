// artifact.json. What is accepted names only plain files of its own directory, and has layers or groups of them.
#include <cstdint>
#include <cstdlib>

#include "runtime/codec/artifact/artifact.h"

namespace {

void CheckName(const aludel::ArtifactFile& file) {
  if (file.file.empty() || file.file[0] == '.' || file.file.find('/') != std::string::npos) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size) {
  using namespace aludel;
  const auto manifest =
      ParseArtifactManifest(absl::string_view(reinterpret_cast<const char*>(bytes), size), "fuzz");
  if (!manifest.ok()) return 0;
  for (const ArtifactFormat& format : manifest->formats) {
    CheckName(format.encoder);
    for (const ArtifactDecoder& decoder : format.decoders) CheckName(decoder.file);
    const bool scd = format.kind == ArtifactKind::kScd;
    if (scd ? format.layers.empty() : format.aludel.groups.empty()) std::abort();
  }
  for (const ArtifactControl& control : manifest->controls) {
    for (const ArtifactDecoder& decoder : control.decoders) CheckName(decoder.file);
    if (control.recomputed_layers >= control.layers) std::abort();
  }
  return 0;
}
