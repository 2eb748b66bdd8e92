#include "tests/e2e/fleet.h"

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "grpcpp/create_channel.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "runtime/text/tokenizer/tokenizer.h"
#include "server/rpc/rpc_status.h"

namespace aludel {

Fleet::Fleet(const FleetOptions& options) : options_(options) {}

std::string Fleet::TransportSettings() const {
  if (options_.ucx_transports.empty()) return "";
  return absl::StrCat("kind: 'ucx' trusted_network: true ucx_transports: '", options_.ucx_transports,
                      "' ucx_devices: '", options_.ucx_transports == "tcp" ? "lo" : "", "'");
}

std::string Fleet::PrefillConfig(int port, int admin_port) const {
  return absl::StrCat("listen: '127.0.0.1:", port, "' admin_listen: '127.0.0.1:", admin_port,
                      "'\nlog { level: 'debug' }\nengine { directory: '", options_.prefill_model,
                      "' threads: 1 prefix_cache: true max_num_seqs: 4 kv_blocks: 256 ",
                      options_.prefill_engine.empty() ? options_.engine : options_.prefill_engine,
                      " }\ncodec { ", options_.codec, " }\n", "transport { ", TransportSettings(),
                      " testing { bytes_per_second: ", options_.bytes_per_second, " ", options_.link,
                      " } }\nsend_arena_bytes: ", options_.send_arena_bytes, "\ndrain_timeout_ms: 3000\n",
                      options_.both, options_.prefill);
}

std::string Fleet::DecodeConfig() const {
  return absl::StrCat(
      "listen: '127.0.0.1:", decode_port_, "' admin_listen: '127.0.0.1:", decode_admin_port_,
      "'\nserved_model_name: 'demo'\nlog { level: 'debug' }\nengine { directory: '", options_.decode_model,
      "' threads: 1 max_num_seqs: ", options_.max_num_seqs,
      " kv_blocks: ", options_.kv_blocks == 0 ? 256 : options_.kv_blocks,
      " prefix_cache: ", options_.prefix_cache ? "true" : "false", " ", options_.engine, " }\ncodec { ",
      options_.codec, " }\ntransport { ", TransportSettings(),
      options_.ucx_transports.empty() ? absl::StrCat("listen: '127.0.0.1:", data_plane_port_, "'") : "",
      " }\nreceive_arena_bytes: 33554432\nprefill_targets: '127.0.0.1:", prefill_port_, "'\n",
      options_.second_prefill ? absl::StrCat("prefill_targets: '127.0.0.1:", second_port_, "'\n") : "",
      "handoff_timeout_ms: ", options_.handoff_timeout_ms,
      "\nprobe_interval_ms: 200 probe_max_interval_ms: 400 probe_timeout_ms: 3000\n",
      "drain_timeout_ms: 3000\n", options_.both, options_.decode);
}

bool Fleet::StartPrefill() {
  prefill_.reset();  // its files go with it, and the next one's have the same names
  prefill_ = std::make_unique<ServerProcess>(
      "aludel-prefill", PrefillConfig(prefill_port_, prefill_admin_port_), prefill_admin_port_);
  return prefill_->WaitReady();
}

bool Fleet::ConnectDecode() {
  if (!decode_->WaitReady()) return false;
  // A connection of its own: another channel's may be to the server that was here before.
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  const auto channel =
      grpc::CreateCustomChannel(absl::StrCat("127.0.0.1:", decode_port_), options_.credentials, arguments);
  // It is ready a moment before it listens.
  if (!channel->WaitForConnected(std::chrono::system_clock::now() + std::chrono::seconds(20))) return false;
  stub_ = v1::Decode::NewStub(channel);
  return true;
}

bool Fleet::StartDecode() {
  decode_.reset();  // its files go with it, and the next one's have the same names
  decode_ = std::make_unique<ServerProcess>("aludel-decode", DecodeConfig(), decode_admin_port_);
  return ConnectDecode();
}

bool Fleet::Start(const std::string& prefill_state) {
  decode_ = std::make_unique<ServerProcess>("aludel-decode", DecodeConfig(), decode_admin_port_);
  if (options_.prefill_port == 0 && !StartPrefill()) return false;
  if (options_.second_prefill) {
    second_prefill_ = std::make_unique<ServerProcess>(
        "aludel-prefill", PrefillConfig(second_port_, second_admin_port_), second_admin_port_);
    if (!second_prefill_->WaitReady()) return false;
  }
  if (!ConnectDecode()) return false;
  return WaitPrefillState(prefill_state) &&
         (!options_.second_prefill ||
          decode_->WaitMetric(absl::StrCat("aludel_prefill_target_state{state=\"ready\",target=\"127.0.0.1:",
                                           second_port_, "\"}"),
                              1, absl::Seconds(20)));
}

bool Fleet::WaitPrefillState(const std::string& state, absl::Duration limit) {
  return decode_->WaitMetric(absl::StrCat("aludel_prefill_target_state{state=\"", state,
                                          "\",target=\"127.0.0.1:", prefill_port_, "\"}"),
                             1, limit);
}

v1::GenerateRequest Fleet::Request(const std::vector<int32_t>& prompt, uint32_t max_tokens,
                                   const std::string& format) {
  v1::GenerateRequest request;
  request.set_request_id("test");
  request.mutable_prompt()->Add(prompt.begin(), prompt.end());
  request.mutable_sampling()->set_max_tokens(max_tokens);
  request.mutable_sampling()->set_ignore_eos(true);
  request.set_format(format);
  return request;
}

Answer Fleet::Ask(const v1::GenerateRequest& request, absl::Duration limit,
                  const std::function<void(grpc::ClientContext&, const v1::GenerateEvent&)>& on_event) {
  const absl::Time start = absl::Now();
  grpc::ClientContext context;
  context.set_deadline(absl::ToChronoTime(start + limit));
  const auto reader = stub_->Generate(&context, request);
  Answer answer;
  v1::GenerateEvent event;
  while (reader->Read(&event)) {
    if (event.has_started()) answer.started = event.started();
    if (event.has_token()) {
      answer.tokens.push_back(event.token().id());
      answer.text += event.token().text();
    }
    if (event.has_finished()) answer.finished = event.finished();
    if (on_event) on_event(context, event);
  }
  answer.status = FromGrpc(reader->Finish());
  answer.took = absl::Now() - start;
  return answer;
}

bool Fleet::DecodeIsIdle(absl::Duration limit) {
  return decode_->WaitMetric("aludel_kv_blocks{model=\"demo\",state=\"reserved\"}", 0, limit) &&
         decode_->WaitMetric("aludel_kv_blocks{model=\"demo\",state=\"used\"}", 0, limit) &&
         decode_->WaitMetric("aludel_tickets_open", 0, limit) &&
         decode_->WaitMetric("aludel_frame_arena_bytes{state=\"reserved\"}", 0, limit);
}

bool Fleet::PrefillIsIdle(absl::Duration limit) {
  return prefill_->WaitMetric("aludel_kv_blocks{model=\"base\",state=\"reserved\"}", 0, limit) &&
         prefill_->WaitMetric("aludel_tickets_open", 0, limit) &&
         prefill_->WaitMetric("aludel_frame_arena_bytes{state=\"reserved\"}", 0, limit);
}

std::string EmbeddedDemoCodec(const std::string& name, int planes) {
  const std::string artifact = absl::StrCat(::testing::TempDir(), "/", name);
  std::filesystem::remove_all(artifact);
  std::filesystem::copy("deploy/demo/codec", artifact);
  const std::string binary =
      std::filesystem::read_symlink("/proc/self/exe").parent_path() / "aludel-calibrate";
  const std::string command =
      absl::StrCat(binary, " --producer deploy/demo/base --consumer deploy/demo/chat --threads 1 --data ",
                   "deploy/demo/calibration.jsonl --prompts 20 --repack --packing embedded --out ", artifact,
                   planes == 0 ? "" : absl::StrCat(" --planes ", planes), " > /dev/null");
  EXPECT_EQ(std::system(command.c_str()), 0) << command;
  return artifact;
}

std::vector<std::vector<int32_t>> DemoPrompts(size_t count) {
  const auto tokenizer = Tokenizer::Load("deploy/demo/base");
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status();
  std::vector<std::vector<int32_t>> prompts;
  std::ifstream in("deploy/demo/questions.jsonl");
  for (std::string line; prompts.size() < count && std::getline(in, line);) {
    const nlohmann::json question = nlohmann::json::parse(line);
    const std::string text =
        absl::StrCat(question["context"].get<std::string>(), " ", question["question"].get<std::string>());
    prompts.push_back(*(*tokenizer)->Encode(text, false));
  }
  return prompts;
}

}  // namespace aludel
