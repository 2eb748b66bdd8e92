# Makes one archive of everything that tests/gpu/run.sh needs on a machine with a GPU: the bundle, the scripts, the models and
# golden files that they read. Unpacked anywhere, aludel-gpu/tests/gpu/run.sh runs as it is.
#
#   cmake -DBUNDLE=build/release/aludel-0.1.0-linux-x86_64 -DFOLDER=build/release/aludel-gpu -DARCHIVE=FILE.tar.xz
#         -DMEBIBYTES=56 [-DQUICK=ON] -P cmake/make_gpu_pack.cmake
#
# The folder holds links alone; the archive holds what they point to, in one window, so that what models and codecs have in
# common is carried once. QUICK is for tests, in seconds: zstd, whose archive (54,452 KiB where that was measured) is larger than
# what xz makes, and is held to the same limit.
cmake_policy(VERSION 3.25)
foreach(name BUNDLE FOLDER ARCHIVE MEBIBYTES)
  if(NOT ${name})
    message(FATAL_ERROR "gpu_pack: -D${name}=... is missing")
  endif()
endforeach()
set(compress "xz -T1 --x86 --lzma2=preset=6,dict=128MiB")
if(QUICK)
  find_program(zstd zstd)
  if(NOT zstd)
    message(FATAL_ERROR "gpu_pack: zstd is not installed: deploy/install_packages.sh --test brings it")
  endif()
  set(compress "${zstd} -T2 -10 --long=28")
endif()
if(NOT EXISTS ${BUNDLE}/MANIFEST)
  message(FATAL_ERROR "gpu_pack: ${BUNDLE} is no bundle: it has no MANIFEST")
endif()
get_filename_component(root ${CMAKE_CURRENT_LIST_DIR} DIRECTORY)
file(REMOVE_RECURSE ${FOLDER})
foreach(path configs deploy/demo/base deploy/demo/chat deploy/demo/codec deploy/demo/json deploy/demo/questions.jsonl
        tests/e2e/stack.py tests/gpu tests/runtime/model/golden)
  get_filename_component(parent ${path} DIRECTORY)
  file(MAKE_DIRECTORY ${FOLDER}/${parent})
  file(CREATE_LINK ${root}/${path} ${FOLDER}/${path} SYMBOLIC)
endforeach()
get_filename_component(bundle ${BUNDLE} ABSOLUTE)
file(CREATE_LINK ${bundle} ${FOLDER}/bundle SYMBOLIC)

get_filename_component(parent ${FOLDER} DIRECTORY)
get_filename_component(name ${FOLDER} NAME)
# No part of run.sh runs it.
set(unused "--exclude=aludel-inspect")
set(pack "tar -C '${parent}' -h --exclude=__pycache__ --exclude=tests/gpu/results ${unused} --sort=name --owner=0 --group=0 --numeric-owner"
    "--mtime=@0 -c '${name}' | ${compress} > '${ARCHIVE}'")
list(JOIN pack " " pack)
execute_process(COMMAND bash -o pipefail -c "${pack}" RESULT_VARIABLE code ERROR_VARIABLE output)
if(code)
  message(FATAL_ERROR "gpu_pack: ${pack}: ${output}")
endif()
file(SIZE ${ARCHIVE} bytes)
math(EXPR kibibytes "${bytes} / 1024")
math(EXPR most "${MEBIBYTES} * 1024")
message(STATUS "gpu_pack: ${ARCHIVE}, ${kibibytes} KiB")
if(kibibytes GREATER most)
  message(FATAL_ERROR "gpu_pack: ${kibibytes} KiB are more than ${MEBIBYTES} MiB")
endif()
