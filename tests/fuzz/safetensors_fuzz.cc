// A model's weight files, as ModelFiles opens them. Input that begins with '{' is
// model.safetensors.index.json up to the first newline, then the shard a.safetensors, whole; b.safetensors is
// a good shard with the tensor "b". Any other input is model.safetensors. Every byte that an accepted tensor
// claims is read.
#include <cstdint>
#include <cstdlib>

#include "runtime/model/weights/safetensors.h"
#include "tests/fuzz/scratch_directory.h"

namespace {

class WithGoodShard : public aludel::ScratchDirectory {
 public:
  WithGoodShard() {
    constexpr char kHeader[] = R"({"b":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})";
    std::string shard(8, '\0');
    shard[0] = sizeof(kHeader) - 1;
    Write("b.safetensors", shard + kHeader + "b");
  }
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size) {
  using namespace aludel;
  static const WithGoodShard directory;
  const absl::string_view input(reinterpret_cast<const char*>(bytes), size);
  if (!input.empty() && input[0] == '{') {
    const size_t newline = input.find('\n');
    directory.Remove("model.safetensors");
    directory.Write("model.safetensors.index.json", input.substr(0, newline));
    directory.Write("a.safetensors", newline == absl::string_view::npos ? "" : input.substr(newline + 1));
  } else {
    directory.Write("model.safetensors", input);
  }
  const auto files = ModelFiles::Open(directory.path());
  if (!files.ok()) return 0;
  unsigned sum = 0;
  for (const auto& [name, entry] : files->entries()) {
    if (files->FileOf(*entry) >= files->files().size() || !files->Find(name).ok()) std::abort();
    for (const uint8_t byte : entry->data) sum += byte;
    sum += static_cast<unsigned>(entry->elements());
  }
  return sum == 0xffffffff ? 1 : 0;
}
