#include "server/config/decode_options.h"
#include "server/config/gateway_options.h"
#include "server/config/prefill_options.h"

#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace aludel {
namespace {

using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;

class Config : public ::testing::Test {
 protected:
  std::string Write(const std::string& text) {
    const std::string path = absl::StrCat(::testing::TempDir(), "config_test.textproto");
    std::ofstream(path) << text;
    return path;
  }
  std::string PrefillError(const std::string& text) {
    return std::string(LoadPrefillOptions(Write(text)).status().message());
  }
  std::string DecodeError(const std::string& text) {
    return std::string(LoadDecodeOptions(Write(text)).status().message());
  }
  std::string GatewayError(const std::string& text) {
    return std::string(LoadGatewayOptions(Write(text)).status().message());
  }
};

TEST_F(Config, DefaultsComeFromTheProto) {
  const auto options = LoadPrefillOptions(Write("engine { directory: 'model' }"));
  ASSERT_TRUE(options.ok()) << options.status();
  EXPECT_EQ(options->listen, "127.0.0.1:7100");
  EXPECT_EQ(options->model.engine.block_tokens, 16);
  EXPECT_EQ(options->model.transformer.compute, DType::kBf16);
  EXPECT_FALSE(options->model.transformer.weights.has_value());
  EXPECT_EQ(options->run_timeout, absl::Seconds(60));
  EXPECT_FALSE(options->log.json);
}

TEST_F(Config, ADecodeServerKeepsCodesOnlyWhereItIsTold) {
  const std::string model = "engine { directory: 'model' } ";
  EXPECT_EQ(LoadDecodeOptions(Write(model))->store.memory_bytes, 0u);
  EXPECT_EQ(LoadDecodeOptions(Write(model + "store { pinned_bytes: 5 }"))->store.memory_bytes, 0u);
  EXPECT_EQ(LoadDecodeOptions(Write(model + "store { memory_bytes: 5 }"))->store.memory_bytes, 5u);
  const auto disk = LoadDecodeOptions(Write(model + "store { disk { path: '/d' } }"));
  ASSERT_TRUE(disk.ok()) << disk.status();
  EXPECT_EQ(disk->store.memory_bytes, uint64_t{256} << 20);
  EXPECT_EQ(disk->store.disk_path, "/d");
  EXPECT_THAT(DecodeError(model + "store { memory_bytes: 5 remote { address: 'valkey:6379' } }"),
              HasSubstr("store.remote.address: found \"valkey:6379\", want none"));
  EXPECT_THAT(DecodeError(model + "store { memory_bytes: 0 disk { path: '/d' } }"),
              HasSubstr("store.memory_bytes: found 0, want some memory"));
}

TEST_F(Config, GpuHasDefaultsOfItsOwn) {
  const auto defaults =
      LoadPrefillOptions(Write("engine { directory: 'model' device: 'cuda:0' weights: 'int8' }"));
  ASSERT_TRUE(defaults.ok()) << defaults.status();
  EXPECT_EQ(defaults->model.engine.max_num_batched_tokens, 2048);
  EXPECT_EQ(defaults->model.transformer.max_rows, 2048);
  EXPECT_EQ(defaults->model.transformer.weights, WeightFormat::kInt8);
  // As many steps as on a CPU.
  EXPECT_EQ(defaults->send_arena_bytes, uint64_t{1} << 30);
  const auto said =
      LoadPrefillOptions(Write("engine { directory: 'm' device: 'cuda:0' max_num_batched_tokens: 256 }"));
  ASSERT_TRUE(said.ok()) << said.status();
  EXPECT_EQ(said->model.engine.max_num_batched_tokens, 256);
  EXPECT_EQ(said->send_arena_bytes, uint64_t{128} << 20);
  EXPECT_EQ(LoadDecodeOptions(Write("engine { directory: 'm' device: 'cuda:0' } receive_arena_bytes: 8192"))
                ->receive_arena_bytes,
            8192);
  EXPECT_EQ(LoadDecodeOptions(Write("engine { directory: 'm' device: 'cuda:0' }"))->receive_arena_bytes,
            uint64_t{1} << 30);
  // One chooses no tokens, the other does.
  EXPECT_FALSE(defaults->model.engine.warm_up_decoding);
  EXPECT_TRUE(
      LoadDecodeOptions(Write("engine { directory: 'm' device: 'cuda:0' }"))->model.engine.warm_up_decoding);
  EXPECT_EQ(
      LoadDecodeOptions(Write("engine { directory: 'm' max_num_batched_tokens: 2048 }"))->receive_arena_bytes,
      uint64_t{128} << 20);
  EXPECT_EQ(LoadPrefillOptions(Write("engine { directory: 'model' }"))->model.engine.max_num_batched_tokens,
            256);
}

TEST_F(Config, EverySettingArrivesInItsStruct) {
  const auto options = LoadDecodeOptions(Write(R"(
      listen: "0.0.0.0:1"
      admin_listen: ""
      log { level: "debug" format: "json" }
      engine { directory: "a/b/" threads: 3 cores: "0-1,7" compute_dtype: "f32" kv_dtype: "f32" kv_blocks: 9 block_tokens: 32
               max_context: 77 max_num_batched_tokens: 64 max_num_seqs: 5 weights: "int4" cuda_graphs: false
               instructions: "portable" }
      codec { artifact: "x" formats: ["raw", "scd"] reload_interval_ms: 12 keep_previous_ms: 13 }
      transport { kind: "ucx" trusted_network: true ucx_transports: "tcp" ucx_devices: "lo" max_inflight_sends: 2 
                  testing { bytes_per_second: 1e6 delay_ms: 3 drop_rate: 0.1 corrupt_rate: 0.2 duplicate_rate: 0.3 seed: 9 } }
      prefill_targets: ["h:1", "dns:///name:2"]
      planner { fidelity: "exact" format: "raw" min_remote_tokens: 4 recomputed_tail_tokens: 2 }
      handoff_timeout_ms: 11)"));
  ASSERT_TRUE(options.ok()) << options.status();
  EXPECT_EQ(options->admin_listen, "");
  EXPECT_EQ(options->served_model_name, "b");
  EXPECT_TRUE(options->log.json);
  EXPECT_EQ(options->model.device.threads, 3);
  EXPECT_THAT(options->model.device.cores, ElementsAre(0, 1, 7));
  EXPECT_EQ(options->model.device.instructions, "portable");
  EXPECT_FALSE(options->model.device.graphs);
  EXPECT_FALSE(options->model.engine.warm_up_decoding);
  EXPECT_EQ(options->model.engine.kv_blocks, 9);
  EXPECT_EQ(options->model.engine.kv_dtype, DType::kF32);
  EXPECT_EQ(options->model.transformer.max_rows, 64);
  EXPECT_EQ(options->model.transformer.weights, WeightFormat::kInt4);
  EXPECT_THAT(options->codec.formats, ElementsAre("raw", "scd"));
  EXPECT_EQ(options->codec.reload_interval, absl::Milliseconds(12));
  EXPECT_EQ(options->codec.keep_previous, absl::Milliseconds(13));
  EXPECT_EQ(options->transport.ucx_devices, "lo");
  EXPECT_EQ(options->transport.link.bytes_per_second, 1e6);
  EXPECT_EQ(options->transport.link.delay, absl::Milliseconds(3));
  EXPECT_EQ(options->transport.link.drop_rate, 0.1);
  EXPECT_EQ(options->transport.link.corrupt_rate, 0.2);
  EXPECT_EQ(options->transport.link.duplicate_rate, 0.3);
  EXPECT_EQ(options->transport.link.seed, 9);
  EXPECT_THAT(options->prefill_targets, ElementsAre("h:1", "dns:///name:2"));
  EXPECT_EQ(options->planner.fidelity, Fidelity::kExact);
  EXPECT_EQ(options->planner.recomputed_tail_tokens, 2);
  EXPECT_EQ(options->handoff_timeout, absl::Milliseconds(11));
}

TEST_F(Config, AnAdapterGivesTheModelItsName) {
  const auto decode = LoadDecodeOptions(Write("engine { directory: 'models/base/' adapter: 'tunes/json' }"));
  ASSERT_TRUE(decode.ok()) << decode.status();
  EXPECT_EQ(decode->model.directory, "models/base/");
  EXPECT_EQ(decode->model.adapter, "tunes/json");
  EXPECT_EQ(decode->served_model_name, "base+json");
  EXPECT_EQ(LoadPrefillOptions(Write("engine { directory: 'm' adapter: 'a' }"))->model_name, "m+a");
}

TEST_F(Config, EachSiteHasOneLimit) {
  const std::string east = "site_limits { site: 'east' max_bytes_per_second: 1000 } ";
  const auto decode = LoadDecodeOptions(
      Write("engine { directory: 'm' } " + east + "site_limits { site: 'west' max_bytes_per_second: 5 }"));
  ASSERT_TRUE(decode.ok()) << decode.status();
  ASSERT_EQ(decode->site_limits.size(), 2);
  EXPECT_EQ(decode->site_limits[1].site, "west");
  EXPECT_EQ(decode->site_limits[1].max_bytes_per_second, 5);
  EXPECT_EQ(LoadPrefillOptions(Write("engine { directory: 'm' } site: 'east'"))->site, "east");
  const auto error = [&](const std::string& text) {
    return std::string(LoadDecodeOptions(Write("engine { directory: 'm' } " + text)).status().message());
  };
  EXPECT_THAT(error(east + east), HasSubstr("\"east\" twice"));
  EXPECT_THAT(error("site_limits { site: 'east' }"), HasSubstr("max_bytes_per_second"));
  EXPECT_THAT(error("site_limits { max_bytes_per_second: 7 }"), HasSubstr("site"));
  EXPECT_THAT(error("site_limits { site: 'a' max_bytes_per_second: 0 }"), HasSubstr("max_bytes_per_second"));
}

TEST_F(Config, AdaptersStandBesideTheModel) {
  const auto decode =
      LoadDecodeOptions(Write("engine { directory: 'base' } adapters { name: 'a' directory: 'tunes/a' } "
                              "adapters { name: 'b' directory: "
                              "'tunes/b' } max_resident_adapters: 3 adapter_root: 'tunes'"));
  ASSERT_TRUE(decode.ok()) << decode.status();
  ASSERT_EQ(decode->adapters.size(), 2);
  EXPECT_EQ(decode->adapters[1].name, "b");
  EXPECT_EQ(decode->adapters[1].directory, "tunes/b");
  EXPECT_EQ(decode->adapters[1].cache_of, "adapter");
  const auto base = LoadDecodeOptions(
      Write("engine { directory: 'm' } adapters { name: 'a' directory: 'x' cache_of: 'base' }"));
  ASSERT_TRUE(base.ok()) << base.status();
  EXPECT_EQ(base->adapters[0].cache_of, "base");
  EXPECT_EQ(decode->max_resident_adapters, 3);
  EXPECT_EQ(decode->adapter_root, "tunes");
  EXPECT_EQ(LoadDecodeOptions(Write("engine { directory: 'base' }"))->max_resident_adapters, 8);
  const auto error = [&](const std::string& text) {
    return std::string(LoadDecodeOptions(Write(text)).status().message());
  };
  EXPECT_THAT(error("engine { directory: 'm' } adapters { name: 'a' directory: 'x' } adapters { name: 'a' "
                    "directory: 'y' }"),
              HasSubstr("each name once"));
  EXPECT_THAT(error("engine { directory: 'm' } adapters { name: 'm' directory: 'x' }"),
              HasSubstr("\"m\" twice"));
  EXPECT_THAT(error("engine { directory: 'm' adapter: 'x' } adapters { name: 'a' directory: 'x' }"),
              HasSubstr("one or the other"));
  EXPECT_THAT(error("engine { directory: 'm' } adapters { name: 'a' }"), HasSubstr("directory"));
  EXPECT_THAT(error("engine { directory: 'm' } adapters { name: 'a' directory: 'x' cache_of: 'b' }"),
              HasSubstr("cache_of"));
}

TEST_F(Config, TheDataPlaneIsTcpAtTheHostOfGrpc) {
  const auto decode = LoadDecodeOptions(Write("listen: '0.0.0.0:7200' engine { directory: 'm' }"));
  ASSERT_TRUE(decode.ok()) << decode.status();
  EXPECT_EQ(decode->transport.kind, "tcp");
  EXPECT_EQ(decode->transport.listen, "0.0.0.0:0");
  EXPECT_TRUE(decode->transport.accepts);
  EXPECT_EQ(LoadDecodeOptions(Write("transport { listen: '[::]:7202' } engine { directory: 'm' }"))
                ->transport.listen,
            "[::]:7202");
  const auto prefill = LoadPrefillOptions(
      Write("receiver_addresses: ['10.0.0.0/8', '[fd00::1]:7202'] engine { directory: 'm' }"));
  ASSERT_TRUE(prefill.ok()) << prefill.status();
  EXPECT_FALSE(prefill->transport.accepts);
  EXPECT_EQ(prefill->receiver_addresses.size(), 2);
  EXPECT_THAT(PrefillError("engine { directory: 'm' } transport { listen: '127.0.0.1:1' }"),
              HasSubstr("transport.listen: found \"127.0.0.1:1\", want nothing"));
  EXPECT_THAT(PrefillError("engine { directory: 'm' } receiver_addresses: 'h:1'"),
              HasSubstr("receiver_addresses[0]: found \"h:1\""));
}

TEST_F(Config, UcxIsForNetworksThatAreDeclaredTrusted) {
  EXPECT_THAT(DecodeError("engine { directory: 'm' } transport { kind: 'ucx' }"),
              HasSubstr("transport.trusted_network: found false beside kind \"ucx\", want true"));
  EXPECT_EQ(DecodeError("engine { directory: 'm' } transport { kind: 'ucx' trusted_network: true }"), "");
  EXPECT_THAT(DecodeError("engine { directory: 'm' } transport { ucx_transports: 'rc' }"),
              HasSubstr("transport.ucx_transports: found \"rc\" beside kind \"tcp\", want kind \"ucx\""));
  EXPECT_THAT(
      DecodeError("engine { directory: 'm' } transport { kind: 'ucx' trusted_network: true listen: 'h:1' }"),
      HasSubstr("transport.listen"));
}

TEST_F(Config, IdentitiesAskForCertificates) {
  const std::string engine = "engine { directory: 'm' } ";
  EXPECT_THAT(DecodeError(engine + "gateway_identities: 'gateway.svc'"),
              HasSubstr("gateway_identities[0]: found \"gateway.svc\" without grpc_tls"));
  EXPECT_THAT(DecodeError(engine + "prefill_identities: 'a*'"), HasSubstr("want a name or *.suffix"));
  EXPECT_THAT(PrefillError(engine + "decode_identities: 'decode.svc'"), HasSubstr("without grpc_tls"));
  EXPECT_THAT(DecodeError(engine + "transport { kind: 'ucx' trusted_network: true } prefill_identities: 'a'"),
              HasSubstr("prefill_identities"));
}

TEST_F(Config, FilesOfTheRepositoryAreValid) {
  EXPECT_TRUE(LoadPrefillOptions("configs/prefill.textproto").ok());
  EXPECT_TRUE(LoadDecodeOptions("configs/decode-chat.textproto").ok());
  EXPECT_TRUE(LoadDecodeOptions("configs/decode-json.textproto").ok());
  EXPECT_TRUE(LoadPrefillOptions("configs/tinyllama/prefill.textproto").ok());
  EXPECT_TRUE(LoadDecodeOptions("configs/tinyllama/decode.textproto").ok());
  EXPECT_TRUE(LoadGatewayOptions("configs/tinyllama/gateway.textproto").ok());
  const auto guarded = LoadGatewayOptions("configs/gateway-public.textproto");
  ASSERT_TRUE(guarded.ok()) << guarded.status();
  EXPECT_EQ(guarded->tls.key_file, "gateway.key");
  EXPECT_EQ(guarded->access.tokens_per_minute, 200000);
  EXPECT_EQ(guarded->tracing.sample_share, 0.05);
  EXPECT_EQ(guarded->lame_duck, absl::Seconds(10));
  const auto gateway = LoadGatewayOptions("configs/gateway.textproto");
  ASSERT_TRUE(gateway.ok()) << gateway.status();
  ASSERT_EQ(gateway->models.size(), 2);
  EXPECT_EQ(gateway->models[1].name, "json");
  EXPECT_EQ(gateway->lame_duck, absl::ZeroDuration());
  EXPECT_THAT(gateway->models[1].decode_targets, ElementsAre("127.0.0.1:7210"));
}

TEST_F(Config, MissingFileIsNamed) {
  const auto status = LoadPrefillOptions("/nowhere/x.textproto").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("/nowhere/x.textproto: cannot read configuration: No such"));
  EXPECT_THAT(std::string(LoadPrefillOptions("/tmp").status().message()),
              HasSubstr("/tmp: is a directory, want a regular file"));
}

TEST_F(Config, AFifoIsRefusedAndNotWaitedFor) {
  const std::string fifo = absl::StrCat(::testing::TempDir(), "config_test.fifo");
  ::unlink(fifo.c_str());
  ASSERT_EQ(::mkfifo(fifo.c_str(), 0600), 0);
  EXPECT_THAT(std::string(LoadPrefillOptions(fifo).status().message()),
              HasSubstr("config_test.fifo: is a FIFO, want a regular file"));
  EXPECT_THAT(DecodeError(absl::StrCat("engine { directory: 'm' } grpc_tls { certificate_file: '", fifo,
                                       "' key_file: 'k' ca_file: 'c' }")),
              HasSubstr("config_test.fifo: is a FIFO, want a regular file"));
}

TEST_F(Config, HedgesAreLimitedByTheirOwnSection) {
  const auto options = LoadDecodeOptions(Write("engine { directory: 'm' }"));
  ASSERT_TRUE(options.ok()) << options.status();
  EXPECT_EQ(options->hedge.max_running, 4);
  EXPECT_EQ(options->hedge.late_share, 0.2);
  EXPECT_EQ(options->hedge.late_min, absl::Milliseconds(50));
  EXPECT_EQ(options->model.engine.max_hedges, 4);
  EXPECT_TRUE(options->planner.hedged);
  const auto none = LoadDecodeOptions(Write("engine { directory: 'm' } hedge { max_running: 0 }"));
  ASSERT_TRUE(none.ok()) << none.status();
  EXPECT_FALSE(none->planner.hedged);
  EXPECT_THAT(DecodeError("engine { directory: 'm' } hedge { late_share: -1 }"),
              HasSubstr("hedge.late_share"));
  EXPECT_THAT(DecodeError("engine { directory: 'm' } hedge { late_min_ms: 0 }"),
              HasSubstr("hedge.late_min_ms"));
}

TEST_F(Config, AFieldThatWasRenamedIsRefusedWithItsNewName) {
  const std::string error = PrefillError("engine {\n chunk_tokens: 256 }");
  EXPECT_THAT(error, HasSubstr("config_test.textproto:2:"));
  EXPECT_THAT(error, HasSubstr("\"chunk_tokens\". Its name is max_num_batched_tokens."));
  EXPECT_THAT(PrefillError("handover_window_bytes: 5"), HasSubstr("Its name is handoff_window_bytes."));
}

TEST_F(Config, ThePlannersPolicyIsRefusedWithWhatToSayInstead) {
  for (const std::string policy : {"first", "fastest"}) {
    EXPECT_THAT(DecodeError("engine { directory: 'm' }\nplanner { policy: '" + policy + "' }"),
                HasSubstr("\"policy\". Its name is by_prediction (\"fastest\" is true; \"first\" is false"));
  }
  EXPECT_FALSE(LoadDecodeOptions(Write("engine { directory: 'm' }"))->planner.by_prediction);
  EXPECT_TRUE(LoadDecodeOptions(Write("engine { directory: 'm' } planner { by_prediction: true }"))
                  ->planner.by_prediction);
}

TEST_F(Config, AFidelityIsOneOfFourAndItsFormerNameIsRefusedWithItsNewOne) {
  for (const auto& [planner, fidelity] :
       {std::pair("", Fidelity::kFast), std::pair("fidelity: 'exact'", Fidelity::kExact),
        std::pair("fidelity: 'high'", Fidelity::kHigh),
        std::pair("fidelity: 'balanced'", Fidelity::kBalanced),
        std::pair("fidelity: 'fast'", Fidelity::kFast)}) {
    const auto options =
        LoadDecodeOptions(Write(absl::StrCat("engine { directory: 'm' } planner { ", planner, " }")));
    ASSERT_TRUE(options.ok()) << options.status();
    EXPECT_EQ(options->planner.fidelity, fidelity) << planner;
  }
  const std::string start = "engine { directory: 'm' }\nplanner { fidelity: ";
  EXPECT_THAT(
      DecodeError(start + "'coded' }"),
      HasSubstr("config_test.textproto:2: planner.fidelity: found \"coded\", want one of exact, high, "
                "balanced, fast. Its name is fast."));
  EXPECT_THAT(DecodeError(start + "'best' }"),
              EndsWith("found \"best\", want one of exact, high, balanced, fast"));
}

TEST_F(Config, TheFormerNamesOfTestKeysAreRefusedWithTheirNewOnes) {
  for (const auto& [old_name, name] :
       {std::pair("emulated_bytes_per_second", "bytes_per_second"),
        std::pair("emulated_delay_ms", "delay_ms"), std::pair("emulated_drop_rate", "drop_rate"),
        std::pair("emulated_corrupt_rate", "corrupt_rate"),
        std::pair("emulated_duplicate_rate", "duplicate_rate"), std::pair("emulated_seed", "seed"),
        std::pair("emulated_lost_share", "drop_rate"), std::pair("emulated_spoiled_share", "corrupt_rate"),
        std::pair("emulated_doubled_share", "duplicate_rate")}) {
    EXPECT_THAT(PrefillError(absl::StrCat("transport { ", old_name, ": 1 }")),
                HasSubstr(absl::StrCat("\"", old_name, "\". Its name is testing { ", name, " }.")));
  }
}

TEST_F(Config, TestKeysOutOfRangeAreRefusedWithTheirPlace) {
  for (const auto& [setting, want] :
       {std::pair("bytes_per_second: -1", "bytes_per_second: found -1, want 0 or more"),
        std::pair("bytes_per_second: nan", "bytes_per_second: found nan, want 0 or more"),
        std::pair("delay_ms: 60001", "delay_ms: found 60001, want 0 to 60000"),
        std::pair("drop_rate: 0.4", "drop_rate: found 0.4, want 0 to 0.333"),
        std::pair("corrupt_rate: -0.1", "corrupt_rate: found -0.1, want 0 to 0.333"),
        std::pair("duplicate_rate: 1", "duplicate_rate: found 1, want 0 to 0.333")}) {
    EXPECT_THAT(
        PrefillError(absl::StrCat("engine { directory: 'm' }\ntransport { testing { ", setting, " } }")),
        HasSubstr(absl::StrCat("config_test.textproto:2: transport.testing.", want)));
  }
}

TEST_F(Config, UnknownFieldIsRefusedWithItsLine) {
  const std::string error = PrefillError("listen: 'h:1'\nlissten: 'h:2'\n");
  EXPECT_THAT(error, HasSubstr("config_test.textproto:2:"));
  EXPECT_THAT(error, HasSubstr("lissten"));
}

TEST_F(Config, TextThatIsNoTextprotoIsRefusedWithItsLine) {
  EXPECT_THAT(PrefillError("engine {\n directory: }"), HasSubstr("config_test.textproto:2:13: "));
  EXPECT_THAT(PrefillError("engine {\n threads: -1 }"), HasSubstr("config_test.textproto:2:"));
  EXPECT_THAT(PrefillError(std::string("\0\x01\xff", 3)), HasSubstr("config_test.textproto:1:1: "));
  EXPECT_THAT(PrefillError("engine {"), HasSubstr("config_test.textproto:1:"));
}

TEST_F(Config, EmptyFileSaysWhatIsMissing) {
  EXPECT_THAT(PrefillError(""),
              HasSubstr("config_test.textproto: engine.directory: found nothing, want a value"));
  EXPECT_THAT(GatewayError(""), HasSubstr("config_test.textproto: models: found none, want at least one"));
}

TEST_F(Config, BadValueNamesFileLineFieldFoundAndExpected) {
  EXPECT_THAT(PrefillError("engine {\n  directory: 'm'\n  block_tokens: 17 }"),
              HasSubstr("config_test.textproto:3: engine.block_tokens: found 17, want a power of two"));
  EXPECT_THAT(PrefillError("engine { directory: 'm' cores: '3-1' }"),
              HasSubstr("engine.cores: found \"3-1\", want a list like 0-3,8"));
  EXPECT_THAT(PrefillError("engine { directory: 'm' cores: '0-1' threads: 3 }"),
              HasSubstr("engine.threads: found 3, want at most one for each of the cores"));
  EXPECT_THAT(PrefillError("engine { directory: 'm' weights: 'int3' }"),
              HasSubstr("engine.weights: found \"int3\", want one of unrounded, bf16, fp8, int8, int4"));
  EXPECT_THAT(PrefillError("engine {\n  directory: 'm'\n  compute_dtype: 'int3' }"),
              HasSubstr(":3: engine.compute_dtype: found \"int3\", want one of bf16, f32"));
  EXPECT_THAT(DecodeError("engine { directory: 'm' kv_dtype: 'fp16' }"),
              HasSubstr("engine.kv_dtype: found \"fp16\", want one of bf16, f32, fp8"));
  EXPECT_EQ(LoadDecodeOptions(Write("engine { directory: 'm' kv_dtype: 'fp8' }"))->model.engine.kv_dtype,
            DType::kFp8);
  EXPECT_THAT(PrefillError("engine { directory: 'm' }\nlisten: 'nohost'"),
              HasSubstr(":2: listen: found \"nohost\", want host:port"));
  EXPECT_THAT(PrefillError("engine { directory: 'm' device: 'tpu' }"),
              HasSubstr(":1: engine.device: found \"tpu\", want cpu or cuda:N"));
  EXPECT_THAT(PrefillError("engine { directory: 'm' kv_blocks: 1 kv_bytes: 2 }"),
              HasSubstr("engine.kv_bytes: found 2 beside kv_blocks 1, want at most one"));
  EXPECT_THAT(DecodeError("engine { directory: 'm' }\nprefill_targets: 'a:1'\nprefill_targets: 'b'"),
              HasSubstr(":3: prefill_targets[1]: found \"b\", want host:port"));
  EXPECT_THAT(DecodeError("engine { directory: 'm' }\nplanner { recomputed_tail_tokens: 0 }"),
              HasSubstr(":2: planner.recomputed_tail_tokens: found 0, want 1 to "));
  EXPECT_THAT(GatewayError("models { name: 'a' directory: 'd' decode_targets: 'h:1' }\nmodels {\n name: 'a' "
                           "directory: 'e' decode_targets: 'h:2' }"),
              HasSubstr(":3: models[1].name: found \"a\" twice, want each name once"));
}

TEST_F(Config, SpecialTokensInContentAreTextUnlessSaidOtherwise) {
  const std::string model = "models { name: 'm' directory: 'd' decode_targets: 'a:1' ";
  EXPECT_TRUE(LoadGatewayOptions(Write(model + "}"))->models[0].special_tokens_as_text);
  EXPECT_FALSE(LoadGatewayOptions(Write(model + "special_tokens_in_content: 'control' }"))
                   ->models[0]
                   .special_tokens_as_text);
  EXPECT_EQ(LoadGatewayOptions(Write(model + "}"))->models[0].max_ttft, absl::InfiniteDuration());
  EXPECT_EQ(LoadGatewayOptions(Write(model + "max_ttft_ms: 1500 }"))->models[0].max_ttft,
            absl::Milliseconds(1500));
  EXPECT_THAT(GatewayError(model + "special_tokens_in_content: 'tokens' }"),
              HasSubstr("models[0].special_tokens_in_content: found \"tokens\", want one of text, control"));
}

TEST_F(Config, RefusesHalfATlsPairAndSharesThatAreNone) {
  const std::string model = "models { name: 'm' directory: 'd' decode_targets: 'a:1' }\n";
  EXPECT_THAT(GatewayError(model + "tls { certificate_file: 'c' }"), HasSubstr("both files or neither"));
  EXPECT_THAT(GatewayError(model + "tracing { sample_share: 1.5 }"), HasSubstr("want 0 to 1"));
  EXPECT_THAT(GatewayError(model + "max_total_body_bytes: 1000"),
              HasSubstr("max_total_body_bytes: found 1000, want at least max_body_bytes, 4194304"));
  EXPECT_THAT(
      GatewayError(model + "tracing { otlp_endpoint: 'collector:4318' }"),
      HasSubstr(":2: tracing.otlp_endpoint: found \"collector:4318\": begins with neither http:// nor "
                "https://, want http://"));
  EXPECT_THAT(GatewayError(model + "tracing { otlp_endpoint: 'http://collector:x/v1' }"),
              HasSubstr("tracing.otlp_endpoint: found \"http://collector:x/v1\": what follows the host is no "
                        "port from 1 to 65535, want http://"));
  EXPECT_THAT(DecodeError("engine { directory: 'd' } shadow { share: -1 }"), HasSubstr("shadow.share"));
}

}  // namespace
}  // namespace aludel
