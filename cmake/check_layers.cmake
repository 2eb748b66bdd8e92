# Who may include whom, as a test: cmake -P cmake/check_layers.cmake from the repository root.
# Rows are the table of the architecture; runtime's inner order is model and kv -> codec -> cache -> engine.

set(allowed_proto "")
set(allowed_kernels "kernels/")
set(allowed_transport "transport/")
set(allowed_runtime_kv "kernels/|runtime/kv/|runtime/status_macros\\.h")
set(allowed_runtime_model "kernels/|runtime/kv/|runtime/model/|runtime/status_macros\\.h")
set(allowed_runtime_codec "kernels/|runtime/kv/|runtime/model/|runtime/codec/|runtime/status_macros\\.h")
set(allowed_runtime_constrain "kernels/|runtime/model/|runtime/constrain/|runtime/status_macros\\.h")
set(allowed_runtime_cache "kernels/|runtime/kv/|runtime/model/|runtime/codec/|runtime/cache/|runtime/status_macros\\.h")
set(allowed_runtime "kernels/|runtime/")
set(allowed_server "kernels/(check|core_list)\\.h|runtime/|transport/|aludel/v1/|server/")

# Outside headers that belong to one room alone.
set(only_in_cuda "cuda|cublas|cudnn|cub/")
set(only_in_ucx "ucp/|uct/|ucs/")
set(only_in_server "grpc|boost/|prometheus/|google/protobuf")

set(errors "")
file(GLOB_RECURSE files RELATIVE ${CMAKE_SOURCE_DIR}
     kernels/*.h kernels/*.cc kernels/*.cu kernels/*.cuh transport/*.h transport/*.cc
     runtime/*.h runtime/*.cc server/*.h server/*.cc)
foreach(file IN LISTS files)
  string(REGEX MATCH "^[a-z]+" room ${file})
  if(file MATCHES "^runtime/(kv|model|codec|constrain|cache)/")
    set(room runtime_${CMAKE_MATCH_1})
  endif()
  file(STRINGS ${CMAKE_SOURCE_DIR}/${file} lines REGEX "^#include")
  foreach(line IN LISTS lines)
    string(REGEX REPLACE "^#include *[\"<]([^\">]*)[\">].*" "\\1" header ${line})
    if(header MATCHES "^(proto|kernels|transport|runtime|server|tests|aludel)/" AND
       NOT header MATCHES "^(${allowed_${room}})")
      list(APPEND errors "${file} includes ${header}: ${room} may include only ${allowed_${room}}")
    endif()
    if(header MATCHES "^(${only_in_cuda})" AND NOT file MATCHES "^kernels/cuda/")
      list(APPEND errors "${file} includes ${header}: CUDA headers belong to kernels/cuda")
    endif()
    if(header MATCHES "^(${only_in_ucx})" AND NOT file MATCHES "^transport/ucx/")
      list(APPEND errors "${file} includes ${header}: UCX headers belong to transport/ucx")
    endif()
    if(header MATCHES "^(${only_in_server})" AND NOT file MATCHES "^server/")
      list(APPEND errors "${file} includes ${header}: gRPC, HTTP and Prometheus belong to server")
    endif()
  endforeach()
endforeach()

list(LENGTH files count)
if(errors)
  list(JOIN errors "\n  " text)
  message(FATAL_ERROR "layer check failed:\n  ${text}")
endif()
message(STATUS "layer check: ${count} files, every include is allowed")
