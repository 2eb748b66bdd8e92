// What the gateway costs a stream: a decode server without a model, aludel-gateway as shipped, and clients,
// each in a process of its own on this machine, all on one clock.

#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <optional>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "nlohmann/json.hpp"
#include "runtime/evaluate/questions.h"
#include "runtime/text/tokenizer/tokenizer.h"
#include "runtime/tool/flag_set.h"
#include "tests/server/gateway/paced_decode.h"
#include "tests/server/gateway/stream_load.h"
#include "tests/testing/server_process.h"

namespace aludel {
namespace {

constexpr char kUsage[] =
    R"(gateway_streams_bench holds streams through aludel-gateway and prints what it added to them: the whole time to the
first token where the decode server answers at once (HTTP, template, tokenizer, routing, two gRPC hops, HTTP), the time
of a token from the decode server's gRPC to the client, and resident memory and CPU of the gateway's process. From the
repository root:

  build/release/bin/gateway_streams_bench --streams 200 --seconds 10 --repeat 5
  build/release/bin/gateway_streams_bench --streams 2000 --seconds 60 --interval-ms 500)";

constexpr char kModel[] = "deploy/demo/chat";

struct Flags {
  int64_t streams = 200;
  int64_t seconds = 10;
  int64_t interval_ms = 50;
  int64_t opened_per_second = 500;
  int64_t repeat = 1;
};

// Another process, which ends with this one.
class DecodeProcess {
 public:
  explicit DecodeProcess(const PacedDecode::Options& options) : pid_(fork()) {
    if (pid_ != 0) return;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    PacedDecode decode(options);
    while (true) pause();
  }
  ~DecodeProcess() {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  DecodeProcess(const DecodeProcess&) = delete;
  DecodeProcess& operator=(const DecodeProcess&) = delete;

 private:
  const pid_t pid_;
};

std::string Body(const Question& question) {
  return nlohmann::json{
      {"model", "chat"},
      {"stream", true},
      {"messages",
       nlohmann::json::array(
           {{{"role", "user"}, {"content", absl::StrCat(question.context, "\n", question.question)}}})}}
      .dump();
}

// Seconds that this machine's cores were kept from it by others on the same host; 0 where nobody says.
double StolenSeconds() {
  std::ifstream in("/proc/stat");
  std::string cpu;
  double ticks[8] = {};  // user, nice, system, idle, iowait, irq, softirq, steal
  in >> cpu;
  for (double& tick : ticks) in >> tick;
  return ticks[7] / static_cast<double>(sysconf(_SC_CLK_TCK));
}

struct Run {
  StreamFigures figures;
  double kib_per_stream = 0;
  double cpu_us_per_token = 0;
};

std::optional<Run> RunOnce(const Flags& flags, const std::string& fingerprint, const std::string& body) {
  const int decode_port = FreePort();
  const int port = FreePort();
  const int admin_port = FreePort();
  const auto tokens = static_cast<int>(flags.seconds * 1000 / flags.interval_ms);
  const DecodeProcess decode({.port = decode_port,
                              .tokenizer_fingerprint = fingerprint,
                              .max_context = 1024,
                              .interval = std::chrono::milliseconds(flags.interval_ms),
                              .count = tokens});
  ServerProcess gateway(
      "aludel-gateway",
      absl::StrCat("listen: '127.0.0.1:", port, "' admin_listen: '127.0.0.1:", admin_port,
                   "'\nlog { level: 'warn' }\nprobe_interval_ms: 100\nmax_connections: ", flags.streams + 100,
                   " max_requests: ", flags.streams, "\nrequest_timeout_ms: ", (flags.seconds + 60) * 1000,
                   "\nmodels { name: 'chat' directory: '", kModel,
                   "' decode_targets: '127.0.0.1:", decode_port, "' }\n"),
      admin_port);
  if (!gateway.WaitReady()) return std::nullopt;
  for (int i = 0; HttpGet(port, "/ready").empty(); ++i) {
    if (i == 200) return std::nullopt;
    absl::SleepFor(absl::Milliseconds(50));
  }
  const auto resident = [&] { return gateway.Metric("process_resident_memory_bytes"); };
  const auto cpu = [&] { return gateway.Metric("process_cpu_seconds_total"); };
  Run run;
  const double resident_before = resident();
  const double cpu_before = cpu();
  double resident_during = 0;
  run.figures = RunStreams(static_cast<uint16_t>(port),
                           {.streams = static_cast<int>(flags.streams),
                            .tokens = tokens,
                            .ramp = std::chrono::milliseconds(flags.streams * 1000 / flags.opened_per_second),
                            .timeout = std::chrono::seconds(flags.seconds + 60),
                            .body = body,
                            .when_all_run = [&] { resident_during = resident(); }});
  run.kib_per_stream = (resident_during - resident_before) / 1024 / static_cast<double>(flags.streams);
  run.cpu_us_per_token = (cpu() - cpu_before) * 1e6 / static_cast<double>(flags.streams * tokens);
  return run;
}

int Main(int argc, char** argv) {
  Flags values;
  FlagSet flags(kUsage);
  flags.Add("streams", "N", &values.streams, "held at once");
  flags.Add("seconds", "N", &values.seconds, "that each stream lasts");
  flags.Add("interval-ms", "N", &values.interval_ms, "between two tokens of a stream");
  flags.Add("opened-per-second", "N", &values.opened_per_second, "streams, until all are open");
  flags.Add("repeat", "N", &values.repeat, "runs, each with fresh processes");
  const absl::Status parsed = flags.Parse(argc, argv);
  if (flags.help_asked()) {
    std::fputs(flags.Help().c_str(), stdout);
    return 0;
  }
  const auto tokenizer = Tokenizer::Load(kModel);
  const auto questions = LoadQuestions("deploy/demo/questions.jsonl", 1);
  for (const absl::Status& status : {parsed, tokenizer.status(), questions.status()}) {
    if (status.ok()) continue;
    std::fprintf(stderr, "gateway_streams_bench: %s\n", std::string(status.message()).c_str());
    return 2;
  }
  bool complete = true;
  for (int64_t i = 0; i < values.repeat; ++i) {
    const double stolen = StolenSeconds();
    const absl::Time begin = absl::Now();
    const auto run = RunOnce(values, (*tokenizer)->fingerprint(), Body((*questions)[0]));
    if (!run) return 1;
    const double stolen_share = (StolenSeconds() - stolen) / absl::ToDoubleSeconds(absl::Now() - begin);
    double load[1] = {0};
    getloadavg(load, 1);
    const StreamFigures& figures = run->figures;
    std::printf(
        "%d of %lld streams complete; first token p50 %.2f p99 %.2f ms; token p50 %.3f p99 %.2f max %.1f ms "
        "(%zu); gateway: %.1f KiB resident a stream, %.1f us CPU a token; load %.2f, %.2f cores stolen by "
        "the "
        "host\n",
        figures.complete, static_cast<long long>(values.streams), Quantile(figures.first_ms, .5),
        Quantile(figures.first_ms, .99), Quantile(figures.token_ms, .5), Quantile(figures.token_ms, .99),
        Quantile(figures.token_ms, 1), figures.token_ms.size(), run->kib_per_stream, run->cpu_us_per_token,
        load[0], stolen_share);
    std::fflush(stdout);
    complete = complete && figures.complete == values.streams;
  }
  return complete ? 0 : 1;
}

}  // namespace
}  // namespace aludel

int main(int argc, char** argv) { return aludel::Main(argc, argv); }
