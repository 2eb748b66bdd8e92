# The target `bundle`: build/PRESET/aludel-VERSION-linux-x86_64.tar.xz, which runs on another Linux x86-64 machine (see
# make_bundle.cmake), with the servers, the tools, and the tests and benchmarks that tests/gpu/run.sh runs there.
if(NOT CMAKE_SYSTEM_PROCESSOR STREQUAL "x86_64" OR ALUDEL_SANITIZE)
  return()
endif()

set(names aludel-prefill aludel-decode aludel-gateway aludel-bench aludel-calibrate aludel-eval aludel-inspect)
if(ALUDEL_TESTS)
  list(APPEND names gpu_tests ops_bench model_bench)
endif()
list(TRANSFORM names REPLACE "(.+)" "$<TARGET_FILE:\\1>" OUTPUT_VARIABLE files)
list(JOIN files "," files)

set(bundle ${CMAKE_BINARY_DIR}/aludel-${PROJECT_VERSION}-linux-x86_64)
list(JOIN CMAKE_CUDA_ARCHITECTURES "," architectures)
set(make_bundle ${CMAKE_COMMAND} -DBINARIES=${files} -DFOLDER=${bundle} -DVERSION=${PROJECT_VERSION}
    -DCUDA=${CUDAToolkit_VERSION} -DARCHITECTURES=${architectures})
add_custom_target(bundle
  COMMAND ${make_bundle} -DARCHIVE=${bundle}.tar.xz -DMEGABYTES=15 -P ${PROJECT_SOURCE_DIR}/cmake/make_bundle.cmake
  DEPENDS ${names} WORKING_DIRECTORY ${PROJECT_SOURCE_DIR} VERBATIM COMMENT "Bundle (minutes of compression)")

# What a machine with a GPU is given, see make_gpu_pack.cmake.
set(gpu_pack ${CMAKE_BINARY_DIR}/aludel-gpu)
set(gpu_pack_mebibytes 56)
set(make_gpu_pack ${CMAKE_COMMAND} -DBUNDLE=${bundle} -DFOLDER=${gpu_pack})
if(ALUDEL_TESTS)
  add_custom_target(gpu_pack
    COMMAND ${make_bundle} -P ${PROJECT_SOURCE_DIR}/cmake/make_bundle.cmake
    COMMAND ${make_gpu_pack} -DARCHIVE=${gpu_pack}.tar.xz -DMEBIBYTES=${gpu_pack_mebibytes} -P ${PROJECT_SOURCE_DIR}/cmake/make_gpu_pack.cmake
    DEPENDS ${names} WORKING_DIRECTORY ${PROJECT_SOURCE_DIR} VERBATIM COMMENT "GPU pack (minutes of compression)")
endif()

if(ALUDEL_TESTS)
  find_package(Python3 COMPONENTS Interpreter QUIET)
  # Compressing it is left out: what is tested is the folder, carried elsewhere.
  add_test(NAME make_bundle COMMAND ${make_bundle} -P cmake/make_bundle.cmake WORKING_DIRECTORY ${PROJECT_SOURCE_DIR})
  aludel_test_settings(make_bundle TIMEOUT 120 FIXTURES_SETUP bundle)
  if(Python3_FOUND)
    add_test(NAME bundle COMMAND ${Python3_EXECUTABLE} tests/deploy/bundle_test.py --bundle ${bundle}
             WORKING_DIRECTORY ${PROJECT_SOURCE_DIR})
    aludel_test_settings(bundle TIMEOUT 120 FIXTURES_REQUIRED bundle LABELS e2e)
    # Compressed in seconds it is larger than the real one, and has to keep that one's limit all the same.
    set(quick_pack ${gpu_pack}-quick.tar)
    add_test(NAME gpu_pack COMMAND ${make_gpu_pack} -DARCHIVE=${quick_pack} -DMEBIBYTES=${gpu_pack_mebibytes} -DQUICK=ON -P cmake/make_gpu_pack.cmake
             WORKING_DIRECTORY ${PROJECT_SOURCE_DIR})
    aludel_test_settings(gpu_pack TIMEOUT 120 FIXTURES_REQUIRED bundle FIXTURES_SETUP gpu_pack)
    add_test(NAME gpu_rehearsal COMMAND ${Python3_EXECUTABLE} tests/gpu/rehearsal_test.py --pack ${quick_pack}
             WORKING_DIRECTORY ${PROJECT_SOURCE_DIR})
    aludel_test_settings(gpu_rehearsal TIMEOUT 300 FIXTURES_REQUIRED gpu_pack LABELS e2e long)
  endif()
endif()
