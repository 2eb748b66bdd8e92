# cmake -DSOURCE=. -DBUILD=build/release/without_video -DCOMPILER=c++ -DNINJA=ninja -P tests/without_video.cmake
#
# Configures a tree with -DALUDEL_VIDEO=OFF and compiles the one file that only such a tree has. Its other objects are those of
# any build; that programs link and run with this one is video_absent_test and calibrate_*_refuses_video_at_once.
cmake_minimum_required(VERSION 3.25)

function(run output)
  execute_process(COMMAND ${ARGN} RESULT_VARIABLE code OUTPUT_VARIABLE text ERROR_VARIABLE text)
  if(NOT code EQUAL 0)
    list(JOIN ARGN " " command)
    message(FATAL_ERROR "${command}: ended with ${code}:\n${text}")
  endif()
  set(${output} "${text}" PARENT_SCOPE)
endfunction()

run(configured ${CMAKE_COMMAND} -S ${SOURCE} -B ${BUILD} -G Ninja -DCMAKE_BUILD_TYPE=Release -DCMAKE_CXX_COMPILER=${COMPILER}
    -DCMAKE_MAKE_PROGRAM=${NINJA} -DALUDEL_TESTS=ON -DALUDEL_CUDA=OFF -DALUDEL_VIDEO=OFF)
if(NOT configured MATCHES "building without packing video")
  message(FATAL_ERROR "-DALUDEL_VIDEO=OFF was not heeded:\n${configured}")
endif()

set(objects runtime/codec/CMakeFiles/aludel_codec.dir/video)
run(ignored ${CMAKE_COMMAND} --build ${BUILD} --target ${objects}/hevc_absent.cc.o)
file(READ ${BUILD}/build.ninja rules)
if(rules MATCHES "aludel_codec.dir/video/(encode|decode)_hevc")
  message(FATAL_ERROR "a file of packing video is still compiled: ${CMAKE_MATCH_0}")
endif()

run(tests ${CMAKE_CTEST_COMMAND} --test-dir ${BUILD} --show-only)
foreach(absent hevc_test video_coder_test video_handoff_test)
  if(tests MATCHES ": ${absent}\n")
    message(FATAL_ERROR "${absent} is a test of a tree without packing video")
  endif()
endforeach()
if(NOT tests MATCHES ": video_absent_test\n")
  message(FATAL_ERROR "video_absent_test is no test of a tree without packing video:\n${tests}")
endif()

# Left out where a tool of packages is missing, see cmake/AludelPackages.cmake.
if(EXISTS ${BUILD}/CPackConfig.cmake)
  file(READ ${BUILD}/CPackConfig.cmake packages)
  if(packages MATCHES "libx265|libavcodec")
    message(FATAL_ERROR "packages of a tree without packing video suggest ${CMAKE_MATCH_0}")
  endif()
endif()
