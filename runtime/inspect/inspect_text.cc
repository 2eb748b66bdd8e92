#include "runtime/inspect/inspect_text.h"

#include <algorithm>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"

namespace aludel {
namespace {

using nlohmann::ordered_json;

constexpr size_t kHashDigits = 12;

std::string Label(const std::string& name) { return absl::StrReplaceAll(name, {{"_", " "}}); }

std::string Scaled(double value, double base, absl::Span<const char* const> units) {
  size_t unit = 0;
  while (unit + 1 < units.size() && value >= base) {
    value /= base;
    ++unit;
  }
  return unit == 0 ? absl::StrFormat("%.0f%s", value, units[0])
                   : absl::StrFormat("%.2f%s", value, units[unit]);
}

std::string Number(const std::string& name, const ordered_json& value) {
  if (!value.is_number_integer()) return absl::StrFormat("%.4g", value.get<double>());
  const auto number = value.get<int64_t>();
  if (name == "parameters") return Scaled(static_cast<double>(number), 1000, {"", " K", " M", " G", " T"});
  // Bytes per token are compared with each other: they stay exact.
  if (absl::EndsWith(name, "bytes")) {
    return Scaled(static_cast<double>(number), 1000, {" B", " kB", " MB", " GB", " TB"});
  }
  return absl::StrCat(number);
}

std::string Scalar(const std::string& name, const ordered_json& value) {
  if (value.is_boolean()) return value.get<bool>() ? "yes" : "no";
  if (value.is_number()) return Number(name, value);
  if (!value.is_string()) return value.dump(-1, ' ', true, ordered_json::error_handler_t::replace);
  const auto text = value.get<std::string>();
  const bool hash = text.size() == 64 && std::all_of(text.begin(), text.end(), [](char c) {
                      return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f');
                    });
  return hash ? text.substr(0, kHashDigits) : text;
}

bool IsTable(const ordered_json& value) {
  return value.is_array() && !value.empty() &&
         std::all_of(value.begin(), value.end(), [](const ordered_json& row) {
           return row.is_object() && std::none_of(row.begin(), row.end(), [](const ordered_json& cell) {
                    return cell.is_structured();
                  });
         });
}

void AppendTable(const ordered_json& rows, const std::string& indent, std::string* text) {
  std::vector<std::string> names;
  std::vector<size_t> widths;
  for (const auto& [name, cell] : rows[0].items()) {
    names.push_back(name);
    size_t width = Label(name).size();
    for (const ordered_json& row : rows)
      width = std::max(width, Scalar(name, row.value(name, ordered_json())).size());
    widths.push_back(width);
  }
  const auto append_row = [&](const auto& cell_of) {
    std::string line = indent;
    for (size_t i = 0; i < names.size(); ++i) {
      absl::StrAppendFormat(&line, "%-*s  ", static_cast<int>(widths[i]), cell_of(names[i]));
    }
    line.erase(line.find_last_not_of(' ') + 1);
    absl::StrAppend(text, line, "\n");
  };
  append_row([](const std::string& name) { return Label(name); });
  for (const ordered_json& row : rows) {
    append_row([&](const std::string& name) { return Scalar(name, row.value(name, ordered_json())); });
  }
}

void AppendObject(const ordered_json& object, const std::string& indent, std::string* text) {
  size_t width = 0;
  for (const auto& [name, value] : object.items()) {
    if (!value.is_structured()) width = std::max(width, Label(name).size());
  }
  for (const auto& [name, value] : object.items()) {
    const std::string label = Label(name);
    if (!value.is_structured()) {
      absl::StrAppendFormat(text, "%s%-*s  %s\n", indent, static_cast<int>(width), label,
                            Scalar(name, value));
    } else if (value.is_object()) {
      if (value.empty()) continue;
      absl::StrAppend(text, indent, label, "\n");
      AppendObject(value, indent + "  ", text);
    } else if (IsTable(value)) {
      absl::StrAppend(text, indent, label, "\n");
      AppendTable(value, indent + "  ", text);
    } else if (std::any_of(value.begin(), value.end(),
                           [](const ordered_json& item) { return item.is_object(); })) {
      for (const ordered_json& item : value) {
        absl::StrAppend(text, indent, label, "\n");
        AppendObject(item, indent + "  ", text);
      }
    } else if (std::any_of(value.begin(), value.end(),
                           [](const ordered_json& item) { return item.is_string(); }) &&
               name == "problems") {
      absl::StrAppend(text, indent, label, "\n");
      for (const ordered_json& item : value) absl::StrAppend(text, indent, "  ", Scalar(name, item), "\n");
    } else {
      std::string list;
      for (const ordered_json& item : value)
        absl::StrAppend(&list, list.empty() ? "" : ", ", Scalar(name, item));
      absl::StrAppend(text, indent, label, "  ", list.empty() ? "none" : list, "\n");
    }
  }
}

}  // namespace

std::string RenderText(const ordered_json& report) {
  std::string text;
  AppendObject(report, "", &text);
  return text;
}

}  // namespace aludel
