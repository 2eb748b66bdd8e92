#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace aludel {

// Command-line flags of the offline tools, over getopt_long: dashes in names, "--flag value" or
// "--flag=value", lists by repetition. Variables hold the defaults, which --help shows.
class FlagSet {
 public:
  // `usage` is the text above the list of flags in --help.
  explicit FlagSet(std::string usage) : usage_(std::move(usage)) {}

  // A placeholder like "DIR" follows the name in --help. Pointers must outlive Parse.
  void Add(const char* name, const char* placeholder, std::string* value, const char* help);
  void Add(const char* name, const char* placeholder, int64_t* value, const char* help);
  void Add(const char* name, const char* placeholder, double* value, const char* help);
  void Add(const char* name, bool* value, const char* help);  // a switch: its presence is true
  void AddList(const char* name, const char* placeholder, std::vector<std::string>* value, const char* help);

  // InvalidArgument names the flag and what was found. Sets help_asked() for --help.
  absl::Status Parse(int argc, char** argv);
  bool help_asked() const { return help_; }
  std::string Help() const;

 private:
  enum class Kind { kText, kInteger, kNumber, kSwitch, kList };
  struct Flag {
    std::string name, placeholder, help, default_text;
    Kind kind;
    void* value;
  };
  static absl::Status Set(const Flag& flag, const char* text);

  std::string usage_;
  std::vector<Flag> flags_;
  bool help_ = false;
};

}  // namespace aludel
