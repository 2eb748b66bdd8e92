#include "kernels/cpu/onednn_loader.h"

#include <dlfcn.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "dnnl.h"

namespace {

#define ALUDEL_TEXT(x) #x
#define ALUDEL_TEXT_OF(x) ALUDEL_TEXT(x)
constexpr char kLibrary[] = "libdnnl.so." ALUDEL_TEXT_OF(DNNL_VERSION_MAJOR);

struct Library {
  Library() : handle(dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL)) {
    if (handle != nullptr) return;
    const char* reason = dlerror();
    error = reason == nullptr ? "no reason given" : reason;
  }
  void* handle;  // stays for the life of the process
  std::string error;
};

const Library& TheLibrary() {
  static const Library library;
  return library;
}

void* Symbol(const char* name) {
  void* handle = TheLibrary().handle;
  return handle == nullptr ? nullptr : dlsym(handle, name);
}

}  // namespace

// The functions of dnnl.h that we call, directly or through the inline ones of dnnl.hpp: each finds the real
// one once and passes its arguments on.
#define ALUDEL_FORWARD(name, parameters, arguments)                                \
  extern "C" dnnl_status_t DNNL_API name parameters {                              \
    static const auto function = reinterpret_cast<decltype(&name)>(Symbol(#name)); \
    return function == nullptr ? dnnl_runtime_error : function arguments;          \
  }

ALUDEL_FORWARD(dnnl_engine_create, (dnnl_engine_t * engine, dnnl_engine_kind_t kind, size_t index),
               (engine, kind, index))
ALUDEL_FORWARD(dnnl_engine_destroy, (dnnl_engine_t engine), (engine))
ALUDEL_FORWARD(dnnl_stream_create, (dnnl_stream_t * stream, dnnl_engine_t engine, unsigned flags),
               (stream, engine, flags))
ALUDEL_FORWARD(dnnl_stream_wait, (dnnl_stream_t stream), (stream))
ALUDEL_FORWARD(dnnl_stream_destroy, (dnnl_stream_t stream), (stream))
ALUDEL_FORWARD(dnnl_memory_desc_init_by_strides,
               (dnnl_memory_desc_t * desc, int dimensions, const dnnl_dims_t sizes, dnnl_data_type_t type,
                const dnnl_dims_t strides),
               (desc, dimensions, sizes, type, strides))
ALUDEL_FORWARD(dnnl_memory_desc_init_by_tag,
               (dnnl_memory_desc_t * desc, int dimensions, const dnnl_dims_t sizes, dnnl_data_type_t type,
                dnnl_format_tag_t tag),
               (desc, dimensions, sizes, type, tag))
ALUDEL_FORWARD(dnnl_memory_create,
               (dnnl_memory_t * memory, const dnnl_memory_desc_t* desc, dnnl_engine_t engine, void* handle),
               (memory, desc, engine, handle))
ALUDEL_FORWARD(dnnl_memory_get_data_handle, (const_dnnl_memory_t memory, void** handle), (memory, handle))
ALUDEL_FORWARD(dnnl_memory_destroy, (dnnl_memory_t memory), (memory))
ALUDEL_FORWARD(dnnl_matmul_desc_init,
               (dnnl_matmul_desc_t * desc, const dnnl_memory_desc_t* source,
                const dnnl_memory_desc_t* weights, const dnnl_memory_desc_t* bias,
                const dnnl_memory_desc_t* destination),
               (desc, source, weights, bias, destination))
ALUDEL_FORWARD(dnnl_post_ops_create, (dnnl_post_ops_t * ops), (ops))
ALUDEL_FORWARD(dnnl_post_ops_append_sum, (dnnl_post_ops_t ops, float scale), (ops, scale))
// Named by dnnl.hpp beside the former, never called: the fuzz preset does not drop the branch.
ALUDEL_FORWARD(dnnl_post_ops_append_sum_v2, (dnnl_post_ops_t ops, float scale, dnnl_data_type_t type),
               (ops, scale, type))
ALUDEL_FORWARD(dnnl_post_ops_destroy, (dnnl_post_ops_t ops), (ops))
ALUDEL_FORWARD(dnnl_primitive_attr_create, (dnnl_primitive_attr_t * attributes), (attributes))
ALUDEL_FORWARD(dnnl_primitive_attr_set_post_ops,
               (dnnl_primitive_attr_t attributes, const_dnnl_post_ops_t ops), (attributes, ops))
ALUDEL_FORWARD(dnnl_primitive_attr_destroy, (dnnl_primitive_attr_t attributes), (attributes))
ALUDEL_FORWARD(dnnl_primitive_desc_iterator_create,
               (dnnl_primitive_desc_iterator_t * iterator, const_dnnl_op_desc_t desc,
                const_dnnl_primitive_attr_t attributes, dnnl_engine_t engine,
                const_dnnl_primitive_desc_t forward_hint),
               (iterator, desc, attributes, engine, forward_hint))
ALUDEL_FORWARD(dnnl_primitive_desc_iterator_destroy, (dnnl_primitive_desc_iterator_t iterator), (iterator))
ALUDEL_FORWARD(dnnl_primitive_desc_query,
               (const_dnnl_primitive_desc_t desc, dnnl_query_t what, int index, void* result),
               (desc, what, index, result))
ALUDEL_FORWARD(dnnl_primitive_desc_destroy, (dnnl_primitive_desc_t desc), (desc))
ALUDEL_FORWARD(dnnl_primitive_create, (dnnl_primitive_t * primitive, const_dnnl_primitive_desc_t desc),
               (primitive, desc))
ALUDEL_FORWARD(dnnl_primitive_execute,
               (const_dnnl_primitive_t primitive, dnnl_stream_t stream, int count,
                const dnnl_exec_arg_t* arguments),
               (primitive, stream, count, arguments))
ALUDEL_FORWARD(dnnl_primitive_destroy, (dnnl_primitive_t primitive), (primitive))
ALUDEL_FORWARD(dnnl_sgemm,
               (char transpose_a, char transpose_b, dnnl_dim_t m, dnnl_dim_t n, dnnl_dim_t k, float alpha,
                const float* a, dnnl_dim_t lda, const float* b, dnnl_dim_t ldb, float beta, float* c,
                dnnl_dim_t ldc),
               (transpose_a, transpose_b, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc))

extern "C" dnnl_cpu_isa_t DNNL_API dnnl_get_effective_cpu_isa() {
  static const auto function =
      reinterpret_cast<decltype(&dnnl_get_effective_cpu_isa)>(Symbol("dnnl_get_effective_cpu_isa"));
  return function == nullptr ? dnnl_cpu_isa_all : function();
}

extern "C" size_t DNNL_API dnnl_memory_desc_get_size(const dnnl_memory_desc_t* desc) {
  static const auto function =
      reinterpret_cast<decltype(&dnnl_memory_desc_get_size)>(Symbol("dnnl_memory_desc_get_size"));
  return function == nullptr ? 0 : function(desc);
}

extern "C" dnnl_primitive_desc_t DNNL_API
dnnl_primitive_desc_iterator_fetch(const_dnnl_primitive_desc_iterator_t iterator) {
  static const auto function = reinterpret_cast<decltype(&dnnl_primitive_desc_iterator_fetch)>(
      Symbol("dnnl_primitive_desc_iterator_fetch"));
  return function == nullptr ? nullptr : function(iterator);
}

extern "C" const dnnl_memory_desc_t DNNL_API* dnnl_primitive_desc_query_md(const_dnnl_primitive_desc_t desc,
                                                                           dnnl_query_t what, int index) {
  static const auto function =
      reinterpret_cast<decltype(&dnnl_primitive_desc_query_md)>(Symbol("dnnl_primitive_desc_query_md"));
  return function == nullptr ? nullptr : function(desc, what, index);
}

namespace aludel::cpu {

absl::Status LoadOneDnn() {
  if (TheLibrary().handle != nullptr) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat("oneDNN cannot be loaded: ", TheLibrary().error));
}

}  // namespace aludel::cpu
