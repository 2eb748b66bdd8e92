// tokenizer.json, and text for it: the part after the last newline. What loads must encode and decode
// without trapping.
#include <cstdint>

#include "runtime/text/tokenizer/tokenizer.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size) {
  using namespace aludel;
  const absl::string_view input(reinterpret_cast<const char*>(bytes), size);
  const size_t newline = input.rfind('\n');
  const absl::string_view file = input.substr(0, newline);
  const absl::string_view text = newline == absl::string_view::npos ? "a b" : input.substr(newline + 1);
  auto tokenizer = Tokenizer::FromJson(file, "fuzz");
  if (!tokenizer.ok()) return 0;
  auto ids = (*tokenizer)->Encode(text, true);
  if (!ids.ok()) return 0;
  (*tokenizer)->Decode(*ids, false);
  StreamDecoder stream(tokenizer->get());
  for (const int32_t id : *ids) stream.Push(id);
  stream.Flush();
  return 0;
}
