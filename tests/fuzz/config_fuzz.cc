// Configuration files: each is refused with a message that names the file, or accepted, by every server.
#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "server/config/decode_options.h"
#include "server/config/gateway_options.h"
#include "server/config/prefill_options.h"

namespace aludel {
namespace {

void CheckMessage(const absl::Status& status, const std::string& path) {
  if (!status.ok() && !absl::StrContains(status.message(), path)) std::abort();
}

}  // namespace
}  // namespace aludel

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size) {
  using namespace aludel;
  static const int file = memfd_create("config", 0);
  static const std::string path = absl::StrCat("/proc/self/fd/", file);
  if (ftruncate(file, 0) != 0 || pwrite(file, bytes, size, 0) != static_cast<ssize_t>(size)) std::abort();
  CheckMessage(LoadPrefillOptions(path).status(), path);
  CheckMessage(LoadDecodeOptions(path).status(), path);
  CheckMessage(LoadGatewayOptions(path).status(), path);
  return 0;
}
