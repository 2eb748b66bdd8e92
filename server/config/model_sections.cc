#include "server/config/model_sections.h"

#include <filesystem>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/core_list.h"
#include "server/config/common_sections.h"
#include "transport/peer_identity.h"

namespace aludel {
namespace {

DType ReadDType(const std::string& name) { return name == "f32" ? DType::kF32 : DType::kBf16; }

// The host of "host:port", with any free port.
std::string AnyPortOf(const std::string& listen) { return listen.substr(0, listen.rfind(':')) + ":0"; }

}  // namespace

ModelOptions ReadEngine(const ConfigSection& section, const v1::EngineConfig& engine) {
  section.CheckNotEmpty("directory");
  section.Check(engine.device() == "cpu" || engine.device().rfind("cuda:", 0) == 0, "device",
                absl::StrCat("\"", engine.device(), "\""), "cpu or cuda:N");
  section.CheckRange("threads", 0, 1024);
  section.CheckOneOf("compute_dtype", {"bf16", "f32"});
  section.CheckOneOf("kv_dtype", {"bf16", "f32"});
  section.CheckOneOf("weights", {"unrounded", "int8", "int4"});
  section.Check(engine.weights() == "unrounded" || engine.device() == "cpu", "weights",
                absl::StrCat("\"", engine.weights(), "\""),
                absl::StrCat("unrounded: device ", engine.device(), " keeps no integers"));
  section.CheckRange("kv_blocks", 0, 1ull << 31);
  section.CheckRange("kv_bytes", 0, kMaxBytes);
  section.Check(engine.kv_blocks() == 0 || engine.kv_bytes() == 0, "kv_bytes",
                absl::StrCat(engine.kv_bytes(), " beside kv_blocks ", engine.kv_blocks()),
                "at most one of kv_blocks and kv_bytes");
  section.CheckRange("block_tokens", 1, 1024);
  section.Check((engine.block_tokens() & (engine.block_tokens() - 1)) == 0, "block_tokens",
                absl::StrCat(engine.block_tokens()), "a power of two");
  section.CheckRange("max_context", 0, kMaxTokens);
  section.CheckRange("max_num_batched_tokens", 1, 65536);
  section.CheckRange("max_num_seqs", 1, 65536);

  ModelOptions options;
  options.directory = engine.directory();
  options.adapter = engine.adapter();
  const absl::StatusOr<std::vector<int>> cores = ParseCoreList(engine.cores());
  section.Check(cores.ok(), "cores", absl::StrCat("\"", engine.cores(), "\""), "a list like 0-3,8");
  section.Check(!cores.ok() || cores->empty() || engine.threads() <= cores->size(), "threads",
                absl::StrCat(engine.threads()), "at most one for each of the cores");
  options.device = {.name = engine.device(),
                    .threads = static_cast<int>(engine.threads()),
                    .cores = cores.ok() ? *cores : std::vector<int>(),
                    .instructions = engine.instructions(),
                    .graphs = engine.cuda_graphs()};
  options.transformer = {.compute = ReadDType(engine.compute_dtype()),
                         .weights = ParseWeightFormat(engine.weights()),
                         .max_rows = engine.max_num_batched_tokens()};
  options.engine = {.kv_blocks = static_cast<int64_t>(engine.kv_blocks()),
                    .block_tokens = static_cast<int>(engine.block_tokens()),
                    .kv_dtype = ReadDType(engine.kv_dtype()),
                    .max_context = static_cast<int64_t>(engine.max_context()),
                    .max_num_batched_tokens = engine.max_num_batched_tokens(),
                    .max_num_seqs = static_cast<int>(engine.max_num_seqs()),
                    .prefix_cache = engine.prefix_cache()};
  options.kv_bytes = engine.kv_bytes();
  return options;
}

CodecOptions ReadCodec(const ConfigSection& section, const v1::CodecConfig& codec) {
  section.CheckUnique("formats");
  CodecOptions options{.artifact = codec.artifact()};
  for (int i = 0; i < codec.formats_size(); ++i) {
    section.CheckNotEmpty("formats", i);
    options.formats.push_back(codec.formats(i));
  }
  return options;
}

LinkEmulation ReadTransportTesting(const ConfigSection& section, const v1::TransportTesting& testing) {
  section.Check(testing.bytes_per_second() >= 0, "bytes_per_second", absl::StrCat(testing.bytes_per_second()),
                "0 or more");
  section.CheckRange("delay_ms", 0, 60000);
  for (const auto& [field, rate] :
       {std::pair("drop_rate", testing.drop_rate()), std::pair("corrupt_rate", testing.corrupt_rate()),
        std::pair("duplicate_rate", testing.duplicate_rate())}) {
    section.Check(rate >= 0 && rate <= 1.0 / 3, field, absl::StrCat(rate), "0 to 1/3");
  }
  return {.bytes_per_second = testing.bytes_per_second(),
          .delay = absl::Milliseconds(testing.delay_ms()),
          .drop_rate = testing.drop_rate(),
          .corrupt_rate = testing.corrupt_rate(),
          .duplicate_rate = testing.duplicate_rate(),
          .seed = testing.seed()};
}

TransportOptions ReadTransport(const ConfigSection& section, const v1::TransportConfig& transport,
                               const std::string& grpc_listen) {
  section.CheckOneOf("kind", {"tcp", "ucx", "loopback"});
  const bool ucx = transport.kind() == "ucx";
  section.Check(
      !ucx || transport.trusted_network(), "trusted_network", "false beside kind \"ucx\"",
      "true, which says that nothing else can send to the interfaces that UCX uses: malformed bytes at "
      "its ports end this process (deploy/THREATS.md); or kind \"tcp\"");
  for (const auto& [field, value] : {std::pair("ucx_transports", transport.ucx_transports()),
                                     std::pair("ucx_devices", transport.ucx_devices())}) {
    section.Check(ucx || value.empty(), field,
                  absl::StrCat("\"", value, "\" beside kind \"", transport.kind(), "\""), "kind \"ucx\"");
  }
  section.Check(transport.listen().empty() || transport.kind() == "tcp", "listen",
                absl::StrCat("\"", transport.listen(), "\" beside kind \"", transport.kind(), "\""),
                "kind \"tcp\"");
  if (!transport.listen().empty()) section.CheckHostPort("listen");
  section.CheckRange("max_inflight_sends", 1, 1 << 20);
  return TransportOptions{.kind = transport.kind(),
                          .listen = transport.listen().empty() ? AnyPortOf(grpc_listen) : transport.listen(),
                          .ucx_transports = transport.ucx_transports(),
                          .ucx_devices = transport.ucx_devices(),
                          .max_inflight_sends = static_cast<int>(transport.max_inflight_sends()),
                          .link = ReadTransportTesting(section.Nested("testing"), transport.testing())};
}

TransportTls DataPlaneTls(const GrpcTlsOptions& tls, std::vector<std::string> peer_identities) {
  return {.certificate_file = tls.certificate_file,
          .key_file = tls.key_file,
          .ca_file = tls.ca_file,
          .reload_interval = tls.reload_interval,
          .peer_identities = std::move(peer_identities)};
}

std::string ModelOptions::Name() const {
  const auto last_part = [](const std::string& directory) {
    const std::filesystem::path path = std::filesystem::path(directory).lexically_normal();
    return path.has_filename() ? path.filename().string() : path.parent_path().filename().string();
  };
  return adapter.empty() ? last_part(directory) : absl::StrCat(last_part(directory), "+", last_part(adapter));
}

std::vector<std::string> ReadIdentities(const ConfigSection& section, const char* field,
                                        const google::protobuf::RepeatedPtrField<std::string>& names,
                                        const GrpcTlsOptions& tls) {
  section.CheckUnique(field);
  for (int i = 0; i < names.size(); ++i) {
    section.Check(IsIdentityPattern(names[i]), field, absl::StrCat("\"", names[i], "\""),
                  "a name or *.suffix", i);
    section.Check(tls.enabled(), field, absl::StrCat("\"", names[i], "\" without grpc_tls"),
                  "grpc_tls, as names are those of certificates", i);
  }
  return {names.begin(), names.end()};
}

}  // namespace aludel
