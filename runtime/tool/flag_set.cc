#include "runtime/tool/flag_set.h"

#include <getopt.h>

#include <algorithm>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "runtime/status_macros.h"

namespace aludel {

void FlagSet::Add(const char* name, const char* placeholder, std::string* value, const char* help) {
  flags_.push_back({name, placeholder, help, *value, Kind::kText, value});
}
void FlagSet::Add(const char* name, const char* placeholder, int64_t* value, const char* help) {
  flags_.push_back({name, placeholder, help, absl::StrCat(*value), Kind::kInteger, value});
}
void FlagSet::Add(const char* name, const char* placeholder, double* value, const char* help) {
  flags_.push_back({name, placeholder, help, absl::StrCat(*value), Kind::kNumber, value});
}
void FlagSet::Add(const char* name, bool* value, const char* help) {
  flags_.push_back({name, "", help, "", Kind::kSwitch, value});
}
void FlagSet::AddList(const char* name, const char* placeholder, std::vector<std::string>* value,
                      const char* help) {
  flags_.push_back({name, placeholder, help, "", Kind::kList, value});
}

void FlagSet::AddArguments(const char* placeholder, size_t max, std::vector<std::string>* value,
                           const char* help) {
  arguments_placeholder_ = placeholder;
  arguments_help_ = help;
  arguments_ = value;
  max_arguments_ = max;
}

absl::Status FlagSet::Set(const Flag& flag, const char* text) {
  bool good = true;
  switch (flag.kind) {
    case Kind::kText:
      *static_cast<std::string*>(flag.value) = text;
      break;
    case Kind::kInteger:
      good = absl::SimpleAtoi(text, static_cast<int64_t*>(flag.value));
      break;
    case Kind::kNumber:
      good = absl::SimpleAtod(text, static_cast<double*>(flag.value));
      break;
    case Kind::kSwitch:
      *static_cast<bool*>(flag.value) = true;
      break;
    case Kind::kList:
      static_cast<std::vector<std::string>*>(flag.value)->push_back(text);
      break;
  }
  if (good) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("--", flag.name, " is \"", text, "\", want ",
                                                 flag.kind == Kind::kInteger ? "an integer" : "a number"));
}

absl::Status FlagSet::Parse(int argc, char** argv) {
  constexpr int kHelp = 1 << 16;
  constexpr int kVersionAsked = kHelp + 1;
  constexpr int kFirst = kVersionAsked + 1;
  std::vector<option> options = {{"help", no_argument, nullptr, kHelp}};
  if (!version_.empty()) options.push_back({"version", no_argument, nullptr, kVersionAsked});
  for (size_t i = 0; i < flags_.size(); ++i) {
    const int argument = flags_[i].kind == Kind::kSwitch ? no_argument : required_argument;
    options.push_back({flags_[i].name.c_str(), argument, nullptr, kFirst + static_cast<int>(i)});
  }
  options.push_back({nullptr, 0, nullptr, 0});
  optind = 0;  // glibc forgets the rest of an argument that an earlier call has refused
  opterr = 0;
  std::vector<const char*> arguments;
  for (;;) {
    const char* const found = argv[std::max(optind, 1)];
    // "-": arguments come in their order (as 1), so that `found` is what this call looks at.
    const int which = getopt_long(argc, argv, "-:", options.data(), nullptr);
    if (which == -1) break;
    if (which == 1) {
      arguments.push_back(optarg);
      continue;
    }
    if (which == kHelp || which == kVersionAsked) {
      (which == kHelp ? help_ : version_asked_) = true;
      return absl::OkStatus();
    }
    if (which == ':') return absl::InvalidArgumentError(absl::StrCat(found, " needs a value"));
    if (which < kFirst) {
      return absl::InvalidArgumentError(absl::StrCat("unknown flag ", found, " (see --help)"));
    }
    ALUDEL_RETURN_IF_ERROR(Set(flags_[which - kFirst], optarg));
  }
  arguments.insert(arguments.end(), argv + optind, argv + argc);  // behind "--"
  for (const char* argument : arguments) {
    if (arguments_ == nullptr) {
      return absl::InvalidArgumentError(
          absl::StrCat("found argument \"", argument, "\", want only flags (see --help)"));
    }
    if (arguments_->size() == max_arguments_) {
      return absl::InvalidArgumentError(absl::StrCat("found argument \"", argument, "\", want only ",
                                                     arguments_placeholder_, " (see --help)"));
    }
    arguments_->push_back(argument);
  }
  return absl::OkStatus();
}

std::optional<std::string> FlagSet::Answer() const {
  if (help_) return Help();
  if (version_asked_) return version_ + "\n";
  return std::nullopt;
}

std::string FlagSet::Help() const {
  std::string text = usage_ + "\n\n";
  if (arguments_ != nullptr) {
    absl::StrAppendFormat(&text, "Arguments:\n  %-26s %s\n\n", arguments_placeholder_, arguments_help_);
  }
  text += "Flags:\n";
  for (const Flag& flag : flags_) {
    const std::string head =
        absl::StrCat("--", flag.name, flag.placeholder.empty() ? "" : " ", flag.placeholder);
    const std::string fallback =
        flag.default_text.empty() ? "" : absl::StrCat(" (default ", flag.default_text, ")");
    absl::StrAppendFormat(&text, "  %-26s %s%s\n", head, flag.help, fallback);
  }
  if (!version_.empty())
    absl::StrAppendFormat(&text, "  %-26s %s\n", "--version", "tell the version and end");
  return text;
}

}  // namespace aludel
