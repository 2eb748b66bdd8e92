#include <algorithm>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <thread>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "runtime/model/model_path.h"
#include "runtime/status_macros.h"
#include "runtime/text/tokenizer/tokenizer.h"
#include "runtime/tool/flag_set.h"
#include "runtime/tool/progress.h"
#include "server/bench/commands.h"
#include "server/bench/ttft/ttft_page.h"
#include "server/bench/ttft/ttft_plan.h"
#include "server/bench/ttft/ttft_rounds.h"
#include "server/bench/ttft/ttft_rows.h"
#include "server/bench/ttft/ttft_servers.h"
#include "transport/monotonic_clock.h"

namespace aludel {
namespace {

using nlohmann::ordered_json;

constexpr char kUsage[] =
    R"(aludel-bench ttft measures the time to the first token through real servers: it starts a gateway, a decode and a
prefill server on this machine, asks for one token of prompts that are new to all servers, over each wire format and by local
prefill in turns, and ends the servers.

  aludel-bench ttft --producer deploy/demo/base --consumer deploy/demo/chat --codec deploy/demo/codec
  aludel-bench ttft --producer MODEL --consumer TUNE --codec CODEC --formats aludel-p2,raw,int8,scd \
      --lengths 256,512,1024,2000 --links 10M,100M,1G,10G --repeats 5 --json ttft.json --html ttft.html

Each prompt comes twice: "cold", when the prefill server computes it, and "warm", when it sends what its store
holds; its metrics must say so, or the row says that it is not warm. The decode server keeps no prefix cache. A link is
a cap on the payload bytes of the prefill server's connection (transport { testing { bytes_per_second } }): on one
machine the rest of the path is faster than any network. Rows are medians with the least and the most, the speed-up is
local prefill's median over the row's, from the same rounds; the stages are those of the median request and sum to it.
The format "planner" leaves the choice to the decode server (planner { by_prediction: true }), and is compared with the best option.

Both servers compute on the cores of this machine, so that cold rows pay twice unless each has cores of its own:

  --prefill 'engine { cores: "0" }' --decode 'engine { cores: "1" }'
  --prefill 'engine { device: "cuda:0" kv_bytes: 5368709120 }' --decode 'engine { device: "cuda:0" kv_bytes: 5368709120 }'

A model without an artifact gets one of random weights from aludel-bench make-codec: its speed is that of a fitted one.)";

constexpr int64_t kMostRepeats = 1000;

struct Flags {
  std::string producer, consumer, formats, bin, text, json, html, prefill_settings, decode_settings;
  std::vector<std::string> codecs;
  std::string lengths = "256,512,1000";
  std::string links = "10M,100M,1G,10G";
  int64_t repeats = 5;
  int64_t threads = 0;
  int64_t seed = 1;
  double minutes = 0;
  double timeout = 600;
};

// What the flags come to.
struct Study {
  std::vector<int64_t> lengths;
  std::vector<double> links;
  std::vector<TtftSetup> setups;
  int64_t raw_bytes_per_token = 0;
  std::string bin;
  TtftPrompts prompts;
};

absl::StatusOr<std::vector<int32_t>> TokensOf(const std::string& path, const Tokenizer& tokenizer) {
  if (path.empty()) return std::vector<int32_t>();
  std::ifstream in(path);
  if (!in.is_open()) return absl::NotFoundError(absl::StrCat("--text: ", path, " cannot be read"));
  std::stringstream text;
  text << in.rdbuf();
  ALUDEL_ASSIGN_OR_RETURN(std::vector<int32_t> ids, tokenizer.Encode(text.str(), false));
  if (ids.empty()) return absl::InvalidArgumentError(absl::StrCat("--text: ", path, " holds no tokens"));
  return ids;
}

absl::StatusOr<Study> PlanStudy(const Flags& flags) {
  ALUDEL_ASSIGN_OR_RETURN(const ModelConfig producer,
                          ModelConfig::Load(ModelPath::Parse(flags.producer).base));
  ALUDEL_ASSIGN_OR_RETURN(const ModelConfig consumer,
                          ModelConfig::Load(ModelPath::Parse(flags.consumer).base));
  ALUDEL_ASSIGN_OR_RETURN(std::vector<int64_t> lengths, ParseLengths(flags.lengths));
  ALUDEL_RETURN_IF_ERROR(CheckLengths(lengths, producer, consumer));
  ALUDEL_ASSIGN_OR_RETURN(std::vector<double> links, ParseLinks(flags.links));
  ALUDEL_ASSIGN_OR_RETURN(std::vector<TtftSetup> setups,
                          PlanSetups(flags.codecs, absl::StrSplit(flags.formats, ',', absl::SkipEmpty())));
  ALUDEL_ASSIGN_OR_RETURN(const std::unique_ptr<Tokenizer> tokenizer,
                          Tokenizer::Load(ModelPath::Parse(flags.consumer).base));
  ALUDEL_ASSIGN_OR_RETURN(std::vector<int32_t> text, TokensOf(flags.text, *tokenizer));
  // A model may know more ids than its tokenizer, and the gateway takes only those of the tokenizer.
  const int64_t vocab = std::min<int64_t>({producer.vocab, consumer.vocab, int64_t{tokenizer->vocab_size()}});
  const std::string bin =
      flags.bin.empty() ? std::filesystem::read_symlink("/proc/self/exe").parent_path().string() : flags.bin;
  return Study{.lengths = std::move(lengths),
               .links = std::move(links),
               .setups = std::move(setups),
               .raw_bytes_per_token = int64_t{4} * producer.layers * producer.kv_dim(),
               .bin = bin,
               .prompts = TtftPrompts(vocab, std::move(text), static_cast<uint64_t>(flags.seed))};
}

absl::Status Write(const std::string& path, const std::string& text) {
  if (path.empty()) return absl::OkStatus();
  std::ofstream out(path);
  out << text;
  out.close();
  return out.good() ? absl::OkStatus() : absl::UnavailableError(absl::StrCat(path, ": cannot be written"));
}

// All figures as they stand: a run that is cut short leaves what it had.
absl::Status WriteFigures(const Flags& flags, const std::vector<TtftRow>& rows) {
  const ordered_json json = {{"producer", flags.producer},
                             {"consumer", flags.consumer},
                             {"codecs", flags.codecs},
                             {"prompts", flags.text.empty() ? "random tokens" : flags.text},
                             {"repeats", flags.repeats},
                             {"threads", flags.threads},
                             {"prefill_settings", flags.prefill_settings},
                             {"decode_settings", flags.decode_settings},
                             {"machine_cores", std::thread::hardware_concurrency()},
                             {"rows", TtftJson(rows)}};
  ALUDEL_RETURN_IF_ERROR(
      Write(flags.json, json.dump(1, ' ', false, ordered_json::error_handler_t::replace) + "\n"));
  return Write(flags.html,
               TtftHtml(rows, absl::StrCat("Time to first token: ", flags.producer, " to ", flags.consumer)));
}

// The folder of one start's configurations and logs, in the system's place for temporary files.
absl::StatusOr<std::string> MakeFolder() {
  std::string path = (std::filesystem::temp_directory_path() / "aludel-ttft-XXXXXX").string();
  if (mkdtemp(path.data()) == nullptr) return absl::UnavailableError(absl::StrCat(path, ": cannot be made"));
  return path;
}

bool AnyFailed(const std::vector<TtftRow>& rows) {
  return std::any_of(rows.begin(), rows.end(),
                     [](const TtftRow& row) { return !row.reason.empty() && row.reason != kNoTime; });
}

// All rows of one artifact over one link. `allowed`: for everything, the start of the servers included.
absl::Status MeasureLink(const Flags& flags, const TtftSetup& setup, double link, absl::Duration allowed,
                         Study* study, std::mt19937_64* order, ProgressBar* bar, std::vector<TtftRow>* rows) {
  const absl::Time begin = MonotonicNow();
  ALUDEL_ASSIGN_OR_RETURN(const std::string folder, MakeFolder());
  absl::Cleanup remove = [&folder] {
    std::error_code ignored;
    std::filesystem::remove_all(folder, ignored);
  };
  const std::string name =
      flags.codecs.size() > 1
          ? absl::StrCat(LinkName(link), ", ", std::filesystem::path(setup.artifact).filename().string())
          : LinkName(link);
  bar->Update(absl::StrCat(name, ": start of the servers"), 0, 1);
  const TtftServerOptions options = {.bin = study->bin,
                                     .folder = folder,
                                     .producer = flags.producer,
                                     .consumer = flags.consumer,
                                     .artifact = setup.artifact,
                                     .formats = setup.formats,
                                     .link = link,
                                     .longest = study->lengths.back(),
                                     .raw_bytes_per_token = study->raw_bytes_per_token,
                                     .threads = flags.threads,
                                     .prefill_settings = flags.prefill_settings,
                                     .decode_settings = flags.decode_settings,
                                     .timeout = absl::Seconds(flags.timeout)};
  auto servers = TtftServers::Start(options, StopAsked);
  absl::Status status = servers.status();
  if (status.ok()) {
    bar->Update(absl::StrCat(name, ": start of the servers"), 1, 1);
    const TtftRounds rounds = {
        .link = link,
        .lengths = study->lengths,
        .formats = setup.formats,
        .repeats = flags.repeats,
        .allowed = allowed - (MonotonicNow() - begin),
        .prompt = [study](int64_t tokens) { return study->prompts.Next(tokens); },
        .progress = [&](int64_t done, int64_t total,
                        absl::string_view what) { bar->Update(name, done, total, what); }};
    status = MeasureRounds(servers->get(), rounds, order, rows);
  }
  bar->Break();
  if (flags.codecs.size() > 1) {
    for (TtftRow& row : *rows) row.artifact = setup.artifact;
  }
  if (absl::IsUnavailable(status) || (status.ok() && AnyFailed(*rows))) {  // the logs say more
    std::move(remove).Cancel();
    absl::FPrintF(stderr, "%s: logs are in %s\n", name, folder);
  }
  return status;
}

absl::Status Measure(const Flags& flags) {
  ALUDEL_ASSIGN_OR_RETURN(Study study, PlanStudy(flags));
  StopOnSignals();
  std::signal(SIGPIPE, SIG_IGN);  // sockets of servers that are gone
  std::mt19937_64 order(static_cast<uint64_t>(flags.seed));
  const absl::Time end =
      flags.minutes > 0 ? MonotonicNow() + absl::Minutes(flags.minutes) : absl::InfiniteFuture();
  std::vector<TtftRow> rows;
  ALUDEL_RETURN_IF_ERROR(WriteFigures(flags, rows));  // or not an hour later
  absl::Status status;
  ProgressBar bar;
  auto starts = static_cast<int64_t>(study.setups.size() * study.links.size());
  for (const double link : study.links) {
    for (const TtftSetup& setup : study.setups) {
      std::vector<TtftRow> more;
      if (status.ok()) {
        status =
            MeasureLink(flags, setup, link, (end - MonotonicNow()) / starts--, &study, &order, &bar, &more);
      }
      rows.insert(rows.end(), more.begin(), more.end());
      ALUDEL_RETURN_IF_ERROR(WriteFigures(flags, rows));
    }
  }
  std::fputs(TtftTable(rows).c_str(), stdout);
  ALUDEL_RETURN_IF_ERROR(status);
  const auto lacking =
      std::count_if(rows.begin(), rows.end(), [](const TtftRow& row) { return !row.reason.empty(); });
  if (lacking == 0) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat(lacking, " of ", rows.size(), " rows could not be measured; the table says why"));
}

}  // namespace

absl::Status TtftCommand(int argc, char** argv) {
  Flags values;
  FlagSet flags(kUsage);
  flags.Add("producer", "DIR", &values.producer, "model of the prefill server");
  flags.Add("consumer", "DIR", &values.consumer,
            "model of the decode server, BASE+ADAPTER with a LoRA adapter");
  flags.AddList("codec", "DIR", &values.codecs, "artifact; several are measured in turns");
  flags.Add("formats", "LIST", &values.formats,
            "of the artifacts, raw, lossless, int8, int4, recompute, planner; default: all of the artifacts, "
            "raw, planner");
  flags.Add("lengths", "LIST", &values.lengths, "tokens of prompts");
  flags.Add("links", "LIST", &values.links, "bits per second with k, M or G, or none for no cap");
  flags.Add("repeats", "N", &values.repeats, "rounds, each of everything in an order of its own");
  flags.Add("minutes", "N", &values.minutes,
            "for everything: fewer rounds, then fewer rows; 0: as long as it takes");
  flags.Add("threads", "N", &values.threads, "of each model server; 0: one per core");
  flags.Add("prefill", "TEXT", &values.prefill_settings,
            "settings of the prefill server, over those made here");
  flags.Add("decode", "TEXT", &values.decode_settings, "settings of the decode server, over those made here");
  flags.Add("text", "FILE", &values.text, "prompts are cut out of this text (default: random tokens)");
  flags.Add("json", "FILE", &values.json, "write the figures, after every link");
  flags.Add("html", "FILE", &values.html, "write a page with plots, after every link");
  flags.Add("bin", "DIR", &values.bin, "where the servers are (default: beside this program)");
  flags.Add("timeout", "SECONDS", &values.timeout, "of the servers' start and of each request");
  flags.Add("seed", "N", &values.seed, "same seed, same prompts and order");
  ALUDEL_RETURN_IF_ERROR(flags.Parse(argc, argv));
  if (flags.help_asked()) {
    std::fputs(flags.Help().c_str(), stdout);
    return absl::OkStatus();
  }
  if (values.producer.empty() || values.consumer.empty()) {
    return absl::InvalidArgumentError("--producer and --consumer are needed (see --help)");
  }
  if (values.repeats < 1 || values.repeats > kMostRepeats || values.threads < 0 || values.minutes < 0 ||
      !(values.timeout >= 1)) {
    return absl::InvalidArgumentError(
        absl::StrCat("want --repeats from 1 to ", kMostRepeats,
                     ", --threads and --minutes at least 0, --timeout at least 1"));
  }
  return Measure(values);
}

}  // namespace aludel
