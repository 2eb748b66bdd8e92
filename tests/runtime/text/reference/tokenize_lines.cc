// Tokenises for compare_random.mjs: DIR with a tokenizer.json as argument; a JSON string a line comes in, and
// {"ids", "decoded", "skipped", "streamed"} a line goes out ("decoded" where it is not the text itself). At
// the end, the rate of Encode on stderr.
#include <cstdio>
#include <ctime>
#include <iostream>
#include <string>

#include "nlohmann/json.hpp"
#include "runtime/text/tokenizer/tokenizer.h"

namespace aludel {
namespace {

double CpuSeconds() { return static_cast<double>(std::clock()) / CLOCKS_PER_SEC; }

nlohmann::json Describe(const Tokenizer& tokenizer, const std::string& text,
                        const std::vector<int32_t>& ids) {
  nlohmann::json line = {{"ids", ids}};
  const std::string decoded = tokenizer.Decode(ids, false);
  if (decoded != text) line["decoded"] = decoded;
  const std::string skipped = tokenizer.Decode(ids, true);
  if (skipped != decoded) line["skipped"] = skipped;
  StreamDecoder stream(&tokenizer);
  std::string streamed;
  for (const int32_t id : ids) streamed += stream.Push(id);
  streamed += stream.Flush();
  if (streamed != skipped) line["streamed"] = streamed;
  return line;
}

int Main(int argc, char** argv) {
  if (argc != 2) {
    std::fputs("usage: tokenize_lines DIR < lines.jsonl\n", stderr);
    return 2;
  }
  const auto tokenizer = Tokenizer::Load(argv[1]);
  if (!tokenizer.ok()) {
    std::fprintf(stderr, "tokenize_lines: %s\n", std::string(tokenizer.status().message()).c_str());
    return 1;
  }
  double seconds = 0;
  double bytes = 0;
  for (std::string line; std::getline(std::cin, line);) {
    if (line.empty()) {  // end of a batch
      std::cout.flush();
      continue;
    }
    const auto text = nlohmann::json::parse(line).get<std::string>();
    const double start = CpuSeconds();
    const auto ids = (*tokenizer)->Encode(text, false);
    seconds += CpuSeconds() - start;
    bytes += static_cast<double>(text.size());
    const nlohmann::json answer = ids.ok() ? Describe(**tokenizer, text, *ids)
                                           : nlohmann::json{{"error", std::string(ids.status().message())}};
    std::cout << answer.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) << "\n";
  }
  std::fprintf(stderr, "%.1f MB of strings, Encode %.2f MB/s of CPU time\n", bytes / 1e6,
               bytes / 1e6 / seconds);
  return 0;
}

}  // namespace
}  // namespace aludel

int main(int argc, char** argv) { return aludel::Main(argc, argv); }
