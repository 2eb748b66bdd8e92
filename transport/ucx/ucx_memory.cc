#include "transport/ucx/ucx_memory.h"

#include "absl/strings/str_cat.h"
#include "transport/ucx/ucx_status.h"

namespace aludel {

absl::StatusOr<std::unique_ptr<UcxMemory>> UcxMemory::Allocate(const UcxContext& context, size_t bytes) {
  if (bytes == 0) return absl::InvalidArgumentError("cannot allocate a transport region of 0 bytes");
  ucp_mem_map_params_t params = {};
  params.field_mask = UCP_MEM_MAP_PARAM_FIELD_ADDRESS | UCP_MEM_MAP_PARAM_FIELD_LENGTH |
                      UCP_MEM_MAP_PARAM_FIELD_FLAGS | UCP_MEM_MAP_PARAM_FIELD_MEMORY_TYPE;
  params.address = nullptr;
  params.length = bytes;
  params.flags = UCP_MEM_MAP_ALLOCATE;
  params.memory_type = UCS_MEMORY_TYPE_HOST;
  ucp_mem_h memory = nullptr;
  ucs_status_t status = ucp_mem_map(context.handle(), &params, &memory);
  if (status != UCS_OK) {
    return FromUcs(status, absl::StrCat("allocate and register ", bytes, " bytes"));
  }
  ucp_mem_attr_t attributes = {};
  attributes.field_mask = UCP_MEM_ATTR_FIELD_ADDRESS | UCP_MEM_ATTR_FIELD_LENGTH;
  status = ucp_mem_query(memory, &attributes);
  if (status != UCS_OK || attributes.length < bytes) {
    ucp_mem_unmap(context.handle(), memory);
    return absl::InternalError(absl::StrCat("UCX registered ", attributes.length, " bytes, want ", bytes,
                                            " (", ucs_status_string(status), ")"));
  }
  return std::unique_ptr<UcxMemory>(new UcxMemory(
      context.handle(), memory, absl::MakeSpan(static_cast<uint8_t*>(attributes.address), bytes)));
}

}  // namespace aludel
