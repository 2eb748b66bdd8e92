#include "runtime/evaluate/evaluation_log.h"

#include <cstring>
#include <filesystem>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "nlohmann/json.hpp"
#include "runtime/status_macros.h"

namespace aludel {
namespace {

using Json = nlohmann::json;

Json ToJson(const LayerError& e) {
  return Json::array({e.k.error, e.k.energy, e.v.error, e.v.energy, e.logits.error, e.logits.energy,
                      e.output.error, e.output.energy});
}

Json ToJson(const FormatRecord& record) {
  Json errors = Json::array(), shares = Json::array();
  for (const LayerError& error : record.errors) errors.push_back(ToJson(error));
  for (const Share& s : record.shares) shares.push_back({s.first_layer, s.layers, s.part, s.bytes});
  return {{"answer", record.answer},
          {"f1", record.f1},
          {"em", record.em},
          {"kl", record.kl},
          {"tv", record.tv},
          {"bytes", record.bytes},
          {"handed_over", record.handed_over},
          {"encode_seconds", record.encode_seconds},
          {"reconstruct_seconds", record.reconstruct_seconds},
          {"errors", errors},
          {"shares", shares}};
}

Json ToJson(const QuestionRecord& record) {
  Json formats = Json::array();
  for (const FormatRecord& format : record.formats) formats.push_back(ToJson(format));
  return {{"prompt_tokens", record.prompt_tokens},
          {"f1", record.f1},
          {"em", record.em},
          {"answer", record.answer},
          {"local_seconds", record.local_seconds},
          {"producer_seconds", record.producer_seconds},
          {"formats", formats}};
}

// These throw nlohmann's exceptions; ParseRecord catches them.
LayerError ErrorFrom(const Json& json) {
  const auto at = [&json](size_t i) { return json.at(i).get<double>(); };
  return {{at(0), at(1)}, {at(2), at(3)}, {at(4), at(5)}, {at(6), at(7)}};
}

FormatRecord FormatFrom(const Json& json) {
  FormatRecord record;
  json.at("answer").get_to(record.answer);
  json.at("f1").get_to(record.f1);
  json.at("em").get_to(record.em);
  json.at("kl").get_to(record.kl);
  json.at("tv").get_to(record.tv);
  json.at("bytes").get_to(record.bytes);
  json.at("handed_over").get_to(record.handed_over);
  json.at("encode_seconds").get_to(record.encode_seconds);
  json.at("reconstruct_seconds").get_to(record.reconstruct_seconds);
  for (const Json& error : json.at("errors")) record.errors.push_back(ErrorFrom(error));
  for (const Json& share : json.at("shares")) {
    record.shares.push_back({share.at(0).get<int>(), share.at(1).get<int>(), share.at(2).get<std::string>(),
                             share.at(3).get<double>()});
  }
  return record;
}

absl::StatusOr<QuestionRecord> ParseRecord(const std::string& line, const std::string& origin) {
  try {
    const Json json = Json::parse(line);
    QuestionRecord record;
    json.at("prompt_tokens").get_to(record.prompt_tokens);
    json.at("f1").get_to(record.f1);
    json.at("em").get_to(record.em);
    json.at("answer").get_to(record.answer);
    json.at("local_seconds").get_to(record.local_seconds);
    json.at("producer_seconds").get_to(record.producer_seconds);
    for (const Json& format : json.at("formats")) record.formats.push_back(FormatFrom(format));
    return record;
  } catch (const Json::exception& failure) {
    return absl::DataLossError(absl::StrCat(origin, ": ", failure.what()));
  }
}

// Reads complete lines. Returns how many bytes they fill; 0 where there is no file yet.
absl::StatusOr<int64_t> ReadRecords(const std::string& path, const std::string& description,
                                    std::vector<QuestionRecord>* records) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return 0;
  int64_t kept = 0;
  std::string line;
  for (int64_t number = 1; std::getline(file, line) && !file.eof(); ++number) {
    if (number == 1) {
      if (line != description) {
        return absl::FailedPreconditionError(
            absl::StrFormat("%s holds another evaluation:\n  %s\nwant\n  %s", path, line, description));
      }
    } else {
      ALUDEL_ASSIGN_OR_RETURN(QuestionRecord record, ParseRecord(line, absl::StrCat(path, ":", number)));
      records->push_back(std::move(record));
    }
    kept += static_cast<int64_t>(line.size()) + 1;
  }
  return kept;
}

}  // namespace

absl::StatusOr<std::unique_ptr<EvaluationLog>> EvaluationLog::Open(const std::string& path,
                                                                   const std::string& description,
                                                                   bool resume,
                                                                   std::vector<QuestionRecord>* records) {
  std::error_code error;
  std::filesystem::create_directories(std::filesystem::path(path).parent_path(), error);
  int64_t kept = 0;
  if (resume) {
    ALUDEL_ASSIGN_OR_RETURN(kept, ReadRecords(path, description, records));
    if (kept > 0) std::filesystem::resize_file(path, kept, error);
    if (error) return absl::UnavailableError(absl::StrCat(path, ": ", error.message()));
  }
  FILE* file = std::fopen(path.c_str(), kept > 0 ? "abe" : "wbe");
  if (file == nullptr) return absl::UnavailableError(absl::StrCat(path, ": ", std::strerror(errno)));
  std::unique_ptr<EvaluationLog> log(new EvaluationLog(path, file));
  if (kept == 0) ALUDEL_RETURN_IF_ERROR(log->WriteLine(description));
  return log;
}

absl::Status EvaluationLog::WriteLine(const std::string& line) {
  // One write and a flush: what a killed process leaves is whole lines and at most one torn one.
  const std::string whole = line + "\n";
  if (std::fwrite(whole.data(), 1, whole.size(), file_.get()) != whole.size() ||
      std::fflush(file_.get()) != 0) {
    return absl::UnavailableError(absl::StrCat(path_, ": ", std::strerror(errno)));
  }
  return absl::OkStatus();
}

absl::Status EvaluationLog::Append(const QuestionRecord& record) { return WriteLine(ToJson(record).dump()); }

}  // namespace aludel
