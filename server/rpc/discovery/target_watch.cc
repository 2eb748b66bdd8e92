#include "server/rpc/discovery/target_watch.h"

#include <algorithm>
#include <fstream>
#include <sstream>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "server/rpc/discovery/dns_lookup.h"
#include "spdlog/spdlog.h"
#include "transport/monotonic_clock.h"

namespace aludel {
namespace {

constexpr char kFile[] = "file:";
constexpr char kDns[] = "dns:";
constexpr absl::Duration kDnsTimeout = absl::Seconds(5);
// Of one list; more are left out.
constexpr size_t kMaxServers = 4096;
constexpr std::streamsize kMaxFileBytes = 1 << 20;

bool IsFile(const std::string& target) { return target.rfind(kFile, 0) == 0; }
bool IsDns(const std::string& target) { return target.rfind(kDns, 0) == 0; }

}  // namespace

bool TargetWatch::Needed(const std::vector<std::string>& targets) {
  return std::any_of(targets.begin(), targets.end(),
                     [](const std::string& target) { return IsFile(target) || IsDns(target); });
}

TargetWatch::TargetWatch(const std::vector<std::string>& targets, Listener listen, const WatchTiming& timing)
    : listen_(std::move(listen)), timing_(timing) {
  for (const std::string& target : targets) sources_.push_back({.target = target});
  thread_ = std::thread([this] { Loop(); });
}

TargetWatch::~TargetWatch() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    stopping_ = true;
    changed_.notify_all();
  }
  thread_.join();
}

void TargetWatch::Loop() {
  std::unique_lock<std::mutex> lock(mutex_);
  while (!stopping_) {
    lock.unlock();
    const bool first = !told_;
    for (Source& source : sources_) {
      if (!IsDns(source.target) && source.next <= MonotonicNow()) Read(&source);
    }
    for (Source& source : sources_) {
      if (!IsDns(source.target) || source.next > MonotonicNow()) continue;
      // It may not answer for long: what is known is told before. Nothing at all would be no list yet.
      if (std::vector<ServerName> servers = Servers(); !first || !servers.empty()) Tell(std::move(servers));
      Read(&source);
    }
    lock.lock();
    if (stopping_) return;
    lock.unlock();
    Tell(Servers());
    lock.lock();
    absl::Time next = absl::InfiniteFuture();
    for (const Source& source : sources_) next = std::min(next, source.next);
    const absl::Duration wait = std::min(next - MonotonicNow(), absl::Hours(1));
    changed_.wait_for(lock, absl::ToChronoNanoseconds(wait), [this] { return stopping_; });
  }
}

std::vector<ServerName> TargetWatch::Servers() {
  std::vector<ServerName> servers;
  size_t left_out = 0;
  for (const Source& source : sources_) {
    for (const ServerName& server : source.servers) {
      const bool known = std::any_of(servers.begin(), servers.end(), [&server](const ServerName& one) {
        return one.target == server.target;
      });
      if (known) continue;
      if (servers.size() < kMaxServers) {
        servers.push_back(server);
      } else {
        ++left_out;
      }
    }
  }
  if (std::exchange(left_out_, left_out) != left_out && left_out > 0) {
    spdlog::warn("{} servers are left out: a list has at most {}", left_out, kMaxServers);
  }
  return servers;
}

void TargetWatch::Tell(std::vector<ServerName> servers) {
  if (told_ == servers) return;
  told_ = std::move(servers);
  listen_(*told_);
}

void TargetWatch::Read(Source* source) {
  if (IsFile(source->target)) return ReadFile(source);
  if (IsDns(source->target)) return ReadDns(source);
  source->servers = {ServerName(source->target)};
  source->next = absl::InfiniteFuture();
}

void TargetWatch::ReadFile(Source* source) {
  source->next = MonotonicNow() + timing_.file_interval;
  // Read whole, as times and sizes tell too little of a file that is replaced through links.
  std::ifstream in(source->target.substr(sizeof(kFile) - 1));
  std::string text(static_cast<size_t>(kMaxFileBytes) + 1, '\0');
  in.read(text.data(), static_cast<std::streamsize>(text.size()));
  if (in.bad() || (in.fail() && !in.eof())) return Complain(source, "the file cannot be read");
  text.resize(static_cast<size_t>(in.gcount()));
  if (static_cast<std::streamsize>(text.size()) > kMaxFileBytes)
    return Complain(source, absl::StrCat("the file is larger than ", kMaxFileBytes, " bytes"));
  source->trouble.clear();
  const bool twice = text == std::exchange(source->read, text);
  if (twice && source->believed) return;
  std::vector<ServerName> servers;
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    line = absl::StripAsciiWhitespace(line.substr(0, line.find('#')));
    if (line.empty()) continue;
    if (line.find(':') == absl::string_view::npos || IsDns(std::string(line)) || IsFile(std::string(line))) {
      spdlog::warn("{}: a line is \"{}\", want host:port; it is left out", source->target, std::string(line));
      continue;
    }
    servers.emplace_back(std::string(line));
  }
  // It may be in the midst of being written.
  const bool all_stay = std::all_of(
      source->servers.begin(), source->servers.end(),
      [&](const ServerName& one) { return std::find(servers.begin(), servers.end(), one) != servers.end(); });
  source->believed = all_stay || twice;
  if (source->believed) source->servers = std::move(servers);
}

void TargetWatch::ReadDns(Source* source) {
  const absl::StatusOr<DnsName> name = ParseDnsName(source->target);
  if (!name.ok()) {
    source->next = absl::InfiniteFuture();
    return Complain(source, std::string(name.status().message()));
  }
  const absl::StatusOr<DnsAnswer> answer = LookUp(*name, kDnsTimeout, [this] {
    std::lock_guard<std::mutex> lock(mutex_);
    return stopping_;
  });
  if (!answer.ok()) {
    source->retry = std::clamp(2 * source->retry, timing_.least, timing_.most);
    source->next = MonotonicNow() + source->retry;
    return Complain(source, std::string(answer.status().message()));
  }
  source->trouble.clear();
  source->retry = absl::ZeroDuration();
  source->next = MonotonicNow() + std::clamp(answer->ttl, timing_.least, timing_.most);
  source->servers.clear();
  for (const std::string& address : answer->addresses) source->servers.emplace_back(address, name->host);
}

void TargetWatch::Complain(Source* source, const std::string& trouble) {
  if (source->trouble == trouble) return;
  source->trouble = trouble;
  spdlog::warn("{}: {}; {} servers are kept", source->target, trouble, source->servers.size());
}

}  // namespace aludel
