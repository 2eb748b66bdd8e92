#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"

namespace aludel {

// A DNS server on a loopback port, which answers what a test has told it: A and AAAA records, of a second unless told.
class FakeDns {
 public:
  FakeDns() : socket_(socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address = Loopback();
    bind(socket_, reinterpret_cast<const sockaddr*>(&address), sizeof(address));
    socklen_t size = sizeof(address);
    getsockname(socket_, reinterpret_cast<sockaddr*>(&address), &size);
    port_ = ntohs(address.sin_port);
    const timeval patience = {.tv_sec = 0, .tv_usec = 20000};
    setsockopt(socket_, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
    thread_ = std::thread([this] { Serve(); });
  }
  ~FakeDns() {
    stopping_ = true;
    thread_.join();
    close(socket_);
  }

  // "dns://here/name:port"
  std::string Target(const std::string& name, int port) const {
    return absl::StrCat("dns://127.0.0.1:", port_, "/", name, ":", port);
  }
  // None: the name does not exist.
  void Set(const std::string& name, std::vector<std::string> addresses) {
    std::lock_guard<std::mutex> lock(mutex_);
    records_[name] = std::move(addresses);
  }
  // The same of IPv6.
  void SetV6(const std::string& name, std::vector<std::string> addresses) {
    std::lock_guard<std::mutex> lock(mutex_);
    records_v6_[name] = std::move(addresses);
  }
  // To questions for A records it says that it has failed.
  void FailV4(bool fail) { fail_v4_ = fail; }
  void SetTtl(uint8_t seconds) { ttl_ = seconds; }
  // It answers nothing at all.
  void Mute(bool mute) { mute_ = mute; }
  int questions() const { return questions_; }

 private:
  static sockaddr_in Loopback() {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    return address;
  }

  void Serve() {
    while (!stopping_) {
      uint8_t packet[512];
      sockaddr_in from{};
      socklen_t size = sizeof(from);
      const ssize_t got =
          recvfrom(socket_, packet, sizeof(packet), 0, reinterpret_cast<sockaddr*>(&from), &size);
      if (got < 17 || mute_) continue;
      ++questions_;
      const std::string answer =
          Answer(std::string(reinterpret_cast<char*>(packet), static_cast<size_t>(got)));
      sendto(socket_, answer.data(), answer.size(), 0, reinterpret_cast<const sockaddr*>(&from), size);
    }
  }

  std::string Answer(const std::string& query) {
    std::string name;
    size_t at = 12;
    while (at < query.size() && query[at] != 0) {
      const auto length = static_cast<size_t>(query[at]);
      absl::StrAppend(&name, name.empty() ? "" : ".", query.substr(at + 1, length));
      at += length + 1;
    }
    const std::string question = query.substr(12, at + 5 - 12);
    const bool wants_a = query[at + 2] == 1;
    std::lock_guard<std::mutex> lock(mutex_);
    const bool fails = wants_a && fail_v4_;
    const std::vector<std::string> records = fails     ? std::vector<std::string>()
                                             : wants_a ? records_[name]
                                                       : records_v6_[name];
    const bool none = records_[name].empty() && records_v6_[name].empty();
    std::string answer = query.substr(0, 2);
    const char code = fails ? '\x82' : none ? '\x83' : '\x80';
    answer += {'\x85', code, 0, 1, 0, static_cast<char>(records.size()), 0, 0, 0, 0};
    answer += question;
    const char type = wants_a ? 1 : 28;
    const size_t size = wants_a ? 4 : 16;
    for (const std::string& record : records) {
      answer += {'\xc0', 12, 0, type, 0, 1, 0, 0, 0, static_cast<char>(ttl_), 0, static_cast<char>(size)};
      in6_addr address{};
      inet_pton(wants_a ? AF_INET : AF_INET6, record.c_str(), &address);
      answer.append(reinterpret_cast<const char*>(&address), size);
    }
    return answer;
  }

  const int socket_;
  int port_ = 0;
  std::atomic<bool> stopping_{false};
  std::atomic<bool> mute_{false};
  std::atomic<bool> fail_v4_{false};
  std::atomic<uint8_t> ttl_{1};
  std::atomic<int> questions_{0};
  std::mutex mutex_;
  std::map<std::string, std::vector<std::string>> records_;
  std::map<std::string, std::vector<std::string>> records_v6_;
  std::thread thread_;
};

}  // namespace aludel
