#include "server/config/model_sections.h"

#include <algorithm>
#include <filesystem>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "kernels/core_list.h"
#include "server/config/common_sections.h"
#include "transport/peer_identity.h"

namespace aludel {
namespace {

DType ReadDType(const std::string& name) {
  return name == "f32" ? DType::kF32 : name == "fp8" ? DType::kFp8 : DType::kBf16;
}

// The host of "host:port", with any free port.
std::string AnyPortOf(const std::string& listen) { return listen.substr(0, listen.rfind(':')) + ":0"; }

}  // namespace

ModelOptions ReadEngine(const ConfigSection& section, const v1::EngineConfig& engine) {
  section.Check(engine.device() == "cpu" || engine.device().rfind("cuda:", 0) == 0, "device",
                absl::StrCat("\"", engine.device(), "\""), "cpu or cuda:N");
  section.Check(engine.kv_blocks() == 0 || engine.kv_bytes() == 0, "kv_bytes",
                absl::StrCat(engine.kv_bytes(), " beside kv_blocks ", engine.kv_blocks()),
                "at most one of kv_blocks and kv_bytes");

  // A GPU's products are as fast as they get only with thousands of rows.
  constexpr uint32_t kGpuStepTokens = 2048;
  const bool on_cpu = engine.device() == "cpu";
  const uint32_t step_tokens =
      on_cpu || engine.has_max_num_batched_tokens() ? engine.max_num_batched_tokens() : kGpuStepTokens;

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
                         .max_rows = step_tokens};
  options.engine = {.kv_blocks = static_cast<int64_t>(engine.kv_blocks()),
                    .block_tokens = static_cast<int>(engine.block_tokens()),
                    .kv_dtype = ReadDType(engine.kv_dtype()),
                    .max_context = static_cast<int64_t>(engine.max_context()),
                    .max_num_batched_tokens = step_tokens,
                    .max_num_seqs = static_cast<int>(engine.max_num_seqs()),
                    .prefix_cache = engine.prefix_cache(),
                    .warm_up_decoding = engine.cuda_graphs()};
  options.kv_bytes = engine.kv_bytes();
  return options;
}

uint64_t ReadArenaBytes(const ModelOptions& model, bool is_said, uint64_t said) {
  // The proto's default over the proto's step: 128 MiB for 256 tokens. A window is four steps at least.
  constexpr uint64_t kBytesPerToken = 512 << 10;
  if (is_said || model.device.name == "cpu") return said;
  return std::max(said, kBytesPerToken * static_cast<uint64_t>(model.engine.max_num_batched_tokens));
}

CodecOptions ReadCodec(const v1::CodecConfig& codec) {
  return {.artifact = codec.artifact(),
          .formats = {codec.formats().begin(), codec.formats().end()},
          .reload_interval = absl::Milliseconds(codec.reload_interval_ms()),
          .keep_previous = absl::Milliseconds(codec.keep_previous_ms())};
}

LinkEmulation ReadTransportTesting(const v1::TransportTesting& testing) {
  return {.bytes_per_second = testing.bytes_per_second(),
          .delay = absl::Milliseconds(testing.delay_ms()),
          .drop_rate = testing.drop_rate(),
          .corrupt_rate = testing.corrupt_rate(),
          .duplicate_rate = testing.duplicate_rate(),
          .seed = testing.seed()};
}

StoreOptions ReadStore(const ConfigSection& section, const v1::StoreConfig& store) {
  StoreOptions options{.memory_bytes = store.memory_bytes(),
                       .by_utility = store.placement() == "utility",
                       .tenant_memory_bytes = store.tenant_memory_bytes(),
                       .control_token_sha256 = store.control_token_sha256(),
                       .pinned_bytes = store.pinned_bytes(),
                       .disk_path = store.disk().path(),
                       .disk_bytes = store.disk().bytes(),
                       .disk_min_requests = store.disk().min_requests(),
                       .disk_read_threads = store.disk().read_threads(),
                       .disk_tenant_bytes = store.disk().tenant_bytes(),
                       .remote_address = store.remote().address(),
                       .remote_password_file = store.remote().password_file(),
                       .remote_username = store.remote().username(),
                       .remote_ttl = absl::Seconds(store.remote().ttl_s()),
                       .remote_max_wait = absl::Milliseconds(store.remote().max_wait_ms()),
                       .remote_threads = store.remote().threads()};
  section.Check(options.disk_path.empty() || options.memory_bytes > 0, "memory_bytes", "0",
                "some memory where disk.path is set: chunks are written from it");
  section.Check(options.remote_address.empty() || options.memory_bytes > 0, "memory_bytes", "0",
                "some memory where remote.address is set: chunks are written from it");
  section.Nested("remote").Check(options.remote_username.empty() || !options.remote_password_file.empty(),
                                 "username", absl::StrCat("\"", options.remote_username, "\""),
                                 "a password_file beside it");
  const std::string& token = options.control_token_sha256;
  section.Check(token.empty() || (token.size() == 64 && absl::c_all_of(token, absl::ascii_isxdigit)),
                "control_token_sha256", absl::StrCat("\"", token, "\""), "64 hexadecimal digits");
  return options;
}

TransportOptions ReadTransport(const ConfigSection& section, const v1::TransportConfig& transport,
                               const std::string& grpc_listen) {
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
  return TransportOptions{.kind = transport.kind(),
                          .listen = transport.listen().empty() ? AnyPortOf(grpc_listen) : transport.listen(),
                          .ucx_transports = transport.ucx_transports(),
                          .ucx_devices = transport.ucx_devices(),
                          .max_inflight_sends = static_cast<int>(transport.max_inflight_sends()),
                          .link = ReadTransportTesting(transport.testing())};
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
  for (int i = 0; i < names.size(); ++i) {
    section.Check(IsIdentityPattern(names[i]), field, absl::StrCat("\"", names[i], "\""),
                  "a name or *.suffix", i);
    section.Check(tls.enabled(), field, absl::StrCat("\"", names[i], "\" without grpc_tls"),
                  "grpc_tls, as names are those of certificates", i);
  }
  return {names.begin(), names.end()};
}

}  // namespace aludel
