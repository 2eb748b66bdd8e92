# aludel_library, aludel_binary, aludel_test: the only ways a target is made here, so that every one of them is
# built with the same language level, warnings and sanitizers, and includes from the repository root.

find_program(ALUDEL_CCACHE ccache)
if(ALUDEL_CCACHE)
  # Paths of this tree are hashed as relative ones, so that another clone finds what the first has compiled.
  set(launcher ${CMAKE_COMMAND} -E env CCACHE_BASEDIR=${PROJECT_SOURCE_DIR} CCACHE_NOHASHDIR=1 ${ALUDEL_CCACHE})
  set(CMAKE_CXX_COMPILER_LAUNCHER ${launcher})
  set(CMAKE_CUDA_COMPILER_LAUNCHER ${launcher})
endif()
if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "" FORCE)
endif()
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bin)
# What a binary finds beside itself when it stands in a bundle, it and the libraries that it loads (hence RPATH and not
# RUNPATH); in the build tree there is no such folder.
set(CMAKE_BUILD_RPATH "$ORIGIN/../lib")
add_link_options(LINKER:--disable-new-dtags)

# Generated code, too: the linker keeps one copy of what its templates share with ours, and that may be its copy.
function(aludel_sanitize target)
  if(ALUDEL_SANITIZE)
    target_compile_options(${target} PUBLIC $<$<COMPILE_LANGUAGE:CXX>:-fsanitize=${ALUDEL_SANITIZE}
                                                                      -fno-sanitize-recover=undefined>)
    target_link_options(${target} PUBLIC -fsanitize=${ALUDEL_SANITIZE})
  endif()
endfunction()

function(_aludel_compile_options target)
  target_compile_features(${target} PUBLIC cxx_std_20)
  set_target_properties(${target} PROPERTIES CXX_EXTENSIONS OFF)
  target_include_directories(${target} PUBLIC ${PROJECT_SOURCE_DIR} ${PROJECT_BINARY_DIR})
  # Errors carry names of ours and of peers: format strings and conversions are checked, and no warning is kept.
  target_compile_options(${target} PRIVATE
    $<$<COMPILE_LANGUAGE:CXX>:-Wall -Wextra -Werror -Wno-sign-compare -Wno-missing-field-initializers
                              -fno-omit-frame-pointer -g1>)
  aludel_sanitize(${target})
endfunction()

# aludel_library(NAME SOURCES a.cc ... DEPS targets ...)
function(aludel_library name)
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPS" ${ARGN})
  add_library(${name} STATIC ${ARG_SOURCES})
  _aludel_compile_options(${name})
  target_link_libraries(${name} PUBLIC ${ARG_DEPS})
endfunction()

# An executable, which under ThreadSanitizer brings what tells that of Abseil's locks and of gRPC's order.
function(_aludel_executable name)
  add_executable(${name} ${ARGN})
  _aludel_compile_options(${name})
  if(ALUDEL_SANITIZE MATCHES "thread")
    set(testing ${PROJECT_SOURCE_DIR}/tests/testing)
    target_sources(${name} PRIVATE ${testing}/tsan_absl.cc ${testing}/tsan_grpc.cc)
    target_link_libraries(${name} PRIVATE ${CMAKE_DL_LIBS})
  endif()
endfunction()

# aludel_binary(NAME SOURCES main.cc ... DEPS targets ...)
function(aludel_binary name)
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPS" ${ARGN})
  _aludel_executable(${name} ${ARG_SOURCES})
  target_link_libraries(${name} PRIVATE ${ARG_DEPS})
endfunction()

# aludel_test_settings(NAME TIMEOUT seconds [other single-valued properties] [LABELS ...] [ENVIRONMENT A=b ...]): how ctest
# runs a test. Under sanitizers it takes longer and they are told what they cannot know. Label e2e: it starts servers; long:
# tests/run.sh runs it with --long alone.
function(aludel_test_settings name)
  cmake_parse_arguments(ARG "" "TIMEOUT" "LABELS;ENVIRONMENT" ${ARGN})
  if(ALUDEL_SANITIZE)
    math(EXPR ARG_TIMEOUT "5 * ${ARG_TIMEOUT}")
  endif()
  set(testing ${PROJECT_SOURCE_DIR}/tests/testing)
  # Tests ask for more memory than there is (allocator_may_return_null).
  if(ALUDEL_SANITIZE MATCHES "thread")
    # UCX patches memory calls at run time, the sanitizer's too, and then crashes; it needs that for RDMA only.
    # OpenMP, which Eigen uses, waits at barriers that it does not see.
    # A server that reports something must not go on as if nothing had happened: then its test fails.
    list(APPEND ARG_ENVIRONMENT UCX_MEM_EVENTS=n OMP_THREAD_LIMIT=1
         TSAN_OPTIONS=suppressions=${testing}/tsan.supp:halt_on_error=1:allocator_may_return_null=1)
  elseif(ALUDEL_SANITIZE)
    # LeakSanitizer crashes in thread-local memory of libraries that were loaded late (oneDNN's OpenMP). What it
    # suppressed would stand in logs that are JSON.
    list(APPEND ARG_ENVIRONMENT ASAN_OPTIONS=allocator_may_return_null=1
         LSAN_OPTIONS=suppressions=${testing}/lsan.supp:use_tls=0:print_suppressions=0)
  endif()
  # Of this build: tests of two checkouts at a time use the same names.
  file(MAKE_DIRECTORY ${PROJECT_BINARY_DIR}/tmp)
  list(APPEND ARG_ENVIRONMENT TEST_TMPDIR=${PROJECT_BINARY_DIR}/tmp/)
  # Servers and their clients want more than one core, and their tests have time bounds.
  set(processors 1)
  if(e2e IN_LIST ARG_LABELS)
    set(processors 2)
  endif()
  set_tests_properties(${name} PROPERTIES TIMEOUT ${ARG_TIMEOUT} LABELS "${ARG_LABELS}" PROCESSORS ${processors}
                       ENVIRONMENT "${ARG_ENVIRONMENT}" ${ARG_UNPARSED_ARGUMENTS})
endfunction()

# aludel_test(NAME SOURCES a_test.cc ... DEPS targets ... [TIMEOUT seconds] [LABELS ...] [ENVIRONMENT A=b ...] [GUARDED [GUARDED_LABELS ...]])
# One GoogleTest binary, run by ctest from the repository root, so that tests name demo files by relative path. GUARDED
# runs it a second time on the device of tests/testing/guarded_device.h.
function(aludel_test name)
  cmake_parse_arguments(ARG "GUARDED" "TIMEOUT" "SOURCES;DEPS;LABELS;ENVIRONMENT;GUARDED_LABELS" ${ARGN})
  _aludel_executable(${name} ${ARG_SOURCES})
  target_link_libraries(${name} PRIVATE ${ARG_DEPS} GTest::gmock GTest::gtest_main)
  add_test(NAME ${name} COMMAND ${name} WORKING_DIRECTORY ${PROJECT_SOURCE_DIR})
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 120)
  endif()
  aludel_test_settings(${name} TIMEOUT ${ARG_TIMEOUT} LABELS ${ARG_LABELS} ENVIRONMENT ${ARG_ENVIRONMENT})
  if(ARG_GUARDED)
    add_test(NAME ${name}_guarded COMMAND ${name} WORKING_DIRECTORY ${PROJECT_SOURCE_DIR})
    aludel_test_settings(${name}_guarded TIMEOUT ${ARG_TIMEOUT} LABELS ${ARG_LABELS} ${ARG_GUARDED_LABELS}
                         ENVIRONMENT ALUDEL_TEST_DEVICE=guarded ${ARG_ENVIRONMENT})
  endif()
endfunction()

# aludel_fuzz(NAME SOURCES a_fuzz.cc ... DEPS targets ...): a libFuzzer target with clang's runtime.
function(aludel_fuzz name)
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPS" ${ARGN})
  add_executable(${name} ${ARG_SOURCES})
  _aludel_compile_options(${name})
  target_compile_options(${name} PRIVATE -fsanitize=fuzzer)
  target_link_options(${name} PRIVATE -fsanitize=fuzzer)
  target_link_libraries(${name} PRIVATE ${ARG_DEPS})
endfunction()
