#pragma once

#include <condition_variable>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/time/time.h"
#include "server/rpc/server_name.h"

namespace aludel {

struct WatchTiming {
  absl::Duration file_interval = absl::Seconds(1);
  // Of DNS answers; in between, their own time to live.
  absl::Duration least = absl::Seconds(1);
  absl::Duration most = absl::Seconds(30);
};

// The servers that a list of targets stands for, as they come and go:
//   dns:///name:port   every address of the name, which is asked for again when its answer is too old
//   file:PATH          a server a line, host:port, "#" begins a comment; read again once a second, and a text that lacks a
//                      server is believed when it is read twice
//   anything else      itself
// A name that has no address and a file that cannot be read keep the servers that they had: those that are gone are told by
// probes. A file without a server has none. Owns one thread, on which `listen` is called with all servers, each once, at
// first and whenever they change, where a name is slow to answer without its servers at first; the destructor waits
// for a call.
class TargetWatch {
 public:
  using Listener = std::function<void(const std::vector<ServerName>& servers)>;
  // Whether any target needs a watch: without, they are what they are.
  static bool Needed(const std::vector<std::string>& targets);

  TargetWatch(const std::vector<std::string>& targets, Listener listen, const WatchTiming& timing = {});
  ~TargetWatch();

 private:
  struct Source {
    std::string target;
    std::vector<ServerName> servers;
    absl::Time next = absl::InfinitePast();  // when it is to be read again; never again: InfiniteFuture
    absl::Duration retry;                    // the last interval in vain; zero: the last was none
    std::string read;                        // a file's text when it was last read
    bool believed = false;                   // and whether `servers` are what it says
    std::string trouble;                     // that was logged
  };

  void Loop();
  // Of all sources, as far as they are known.
  std::vector<ServerName> Servers();
  void Tell(std::vector<ServerName> servers);
  void Read(Source* source);
  void ReadFile(Source* source);
  void ReadDns(Source* source);
  void Complain(Source* source, const std::string& trouble);

  const Listener listen_;
  const WatchTiming timing_;
  std::vector<Source> sources_;                  // the thread's, as the next two
  std::optional<std::vector<ServerName>> told_;  // last
  size_t left_out_ = 0;                          // of the last list, for its length
  std::mutex mutex_;  // not absl's, whose timed waits follow the clock that can be set
  std::condition_variable changed_;
  bool stopping_ = false;  // under mutex_
  std::thread thread_;
};

}  // namespace aludel
