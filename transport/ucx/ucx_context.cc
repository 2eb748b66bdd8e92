#include "transport/ucx/ucx_context.h"

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "transport/transport_options.h"
#include "transport/ucx/ucx_status.h"

namespace aludel {
namespace {

struct Setting {
  const char* name;
  const char* value;
};

// UCX 1.13 knows settings of its lower layer here by their names without the transport's own prefix; under
// another name they are taken without complaint and have no effect.
constexpr Setting kFixedSettings[] = {
    // A restarted server must be able to listen at once.
    {"CM_REUSEADDR", "y"},
    // The receiver pulls: no peer is ever handed a key that lets it write here.
    {"RNDV_SCHEME", "get_zcopy"},
    // One rail: else large messages stripe over every interface that is up, the slow ones too.
    {"MAX_RNDV_RAILS", "1"},
    {"MAX_EAGER_RAILS", "1"},
    // What UCX's own tcp sends from our memory is completed twice where the peer is gone before the socket has taken it
    // all, and that ends the process (uct_tcp_ep_sendv, up to UCX 1.22). What it sends from its buffers is not. RDMA
    // and cma fetch large messages, whatever is set here.
    {"ZCOPY_THRESH", "inf"},
    // Those buffers, of tcp alone: as large as what it sends from our memory at once, which every peer takes. With its
    // 8 kB it moves a third of the bytes.
    {"TX_SEG_SIZE", "64k"},
    // The new protocol selection aborts in UCX 1.13.
    {"PROTO_ENABLE", "n"},
};

// Endpoints use UCP_ERR_HANDLING_MODE_PEER, which drops shared memory unless it is told to handle errors.
constexpr Setting kSharedMemoryErrors = {"MM_ERROR_HANDLING", "y"};

// CMA (the receiver reads the sender's memory in one system call) is dropped in that mode too, as UCX cannot
// take back what it has told a peer. We need no such thing: a peer that reads memory whose send was given up
// gets bytes that fail its frame's checksum, and CMA works only between processes that may read each other
// anyway. Without it large messages are copied twice, through small cells: 2 in place of 6 to 10 GB/s where
// the two cores share no cache.
constexpr Setting kCmaErrors = {"MEMORY_INVALIDATE", "y"};

// Everything but System V shared memory, on which large messages were seen to hang in this mode.
constexpr absl::string_view kDefaultTransports = "^sysv";

bool NamesCma(absl::string_view transports) {
  const std::vector<absl::string_view> names = absl::StrSplit(transports, ',');
  return std::find(names.begin(), names.end(), "cma") != names.end();
}

bool UsesSharedMemory(absl::string_view transports) {
  for (absl::string_view name : absl::StrSplit(transports, ',')) {
    if (name == "posix" || name == "sysv" || name == "mm" || name == "sm" || name == "shm" || name == "all") {
      return true;
    }
  }
  return transports == kDefaultTransports;
}

class UcxConfig {
 public:
  UcxConfig() = default;
  ~UcxConfig() {
    if (config_ != nullptr) ucp_config_release(config_);
  }
  UcxConfig(const UcxConfig&) = delete;
  UcxConfig& operator=(const UcxConfig&) = delete;

  absl::Status Read() { return FromUcs(ucp_config_read(nullptr, nullptr, &config_), "read UCX settings"); }
  absl::Status Set(const char* name, const char* value) {
    return FromUcs(ucp_config_modify(config_, name, value), absl::StrCat("set UCX_", name, "=", value));
  }
  const ucp_config_t* get() const { return config_; }

 private:
  ucp_config_t* config_ = nullptr;
};

absl::Status Configure(const TransportOptions& options, UcxConfig& config) {
  if (absl::Status status = config.Read(); !status.ok()) return status;
  for (const Setting& setting : kFixedSettings) {
    if (absl::Status status = config.Set(setting.name, setting.value); !status.ok()) return status;
  }
  const std::string transports =
      options.ucx_transports.empty() ? std::string(kDefaultTransports) : options.ucx_transports;
  if (absl::Status status = config.Set("TLS", transports.c_str()); !status.ok()) return status;
  if (UsesSharedMemory(transports)) {
    absl::Status status = config.Set(kSharedMemoryErrors.name, kSharedMemoryErrors.value);
    if (!status.ok()) return status;
  }
  if (NamesCma(transports)) {
    if (absl::Status status = config.Set(kCmaErrors.name, kCmaErrors.value); !status.ok()) return status;
  }
  if (!options.ucx_devices.empty()) {
    if (absl::Status status = config.Set("NET_DEVICES", options.ucx_devices.c_str()); !status.ok()) {
      return status;
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<UcxContext>> UcxContext::Open(const TransportOptions& options) {
  UcxConfig config;
  if (absl::Status status = Configure(options, config); !status.ok()) return status;

  ucp_params_t params = {};
  params.field_mask = UCP_PARAM_FIELD_FEATURES | UCP_PARAM_FIELD_MT_WORKERS_SHARED | UCP_PARAM_FIELD_NAME;
  params.features = UCP_FEATURE_AM | UCP_FEATURE_WAKEUP;
  params.mt_workers_shared = 1;  // Allocate() maps memory from any thread.
  params.name = "aludel";
  ucp_context_h context = nullptr;
  const ucs_status_t status = ucp_init(&params, config.get(), &context);
  if (status != UCS_OK) {
    return FromUcs(status, absl::StrCat("open UCX with transports \"", options.ucx_transports,
                                        "\" and devices \"", options.ucx_devices, "\""));
  }
  return std::unique_ptr<UcxContext>(new UcxContext(context));
}

bool UcxContext::ReachesGpuMemory() const {
  ucp_context_attr_t attributes = {};
  attributes.field_mask = UCP_ATTR_FIELD_MEMORY_TYPES;
  return ucp_context_query(context_, &attributes) == UCS_OK &&
         (attributes.memory_types & UCS_BIT(UCS_MEMORY_TYPE_CUDA)) != 0;
}

}  // namespace aludel
