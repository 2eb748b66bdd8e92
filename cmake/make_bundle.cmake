# Makes a folder, and a tarball of it, that runs on another Linux x86-64 machine: binaries with the shared libraries that
# they need beyond glibc, the GPU driver and CUDA, found beside them through their RPATH ($ORIGIN/../lib).
#
#   cmake -DBINARIES=a,b,... -DFOLDER=build/release/aludel-bundle [-DARCHIVE=FILE.tar.xz [-DMEGABYTES=15, or fails]]
#         [-DVERSION=0.1.0] [-DCUDA=13.0] [-DARCHITECTURES=...] -P cmake/make_bundle.cmake
#
# Debian 12's own libraries are taken as they are, with three exceptions: symbols that only debuggers read go; of ICU's 30 MB
# of data the normalization tables stay, which are what we ask it for; oneDNN (40 MB), which is loaded where it is
# installed and not needed, stays out.
cmake_policy(VERSION 3.25)
foreach(name BINARIES FOLDER)
  if(NOT ${name})
    message(FATAL_ERROR "bundle: -D${name}=... is missing")
  endif()
endforeach()
string(REPLACE "," ";" BINARIES "${BINARIES}")
file(REMOVE_RECURSE ${FOLDER})
file(MAKE_DIRECTORY ${FOLDER}/bin ${FOLDER}/lib/ucx)

function(run)
  execute_process(COMMAND ${ARGN} RESULT_VARIABLE code OUTPUT_VARIABLE output ERROR_VARIABLE output)
  if(code)
    list(JOIN ARGN " " text)
    message(FATAL_ERROR "bundle: ${text}: ${output}")
  endif()
endfunction()

# What the target machine brings: glibc, which belongs to its kernel and loader, and the driver.
set(theirs "/(ld-linux-x86-64|libc|libm|libdl|libpthread|librt|libresolv|libutil|libnsl|libanl|libcuda|libnvidia[^/]*)\\.so[.0-9]*$")
file(GET_RUNTIME_DEPENDENCIES EXECUTABLES ${BINARIES} RESOLVED_DEPENDENCIES_VAR libraries
     POST_EXCLUDE_REGEXES ${theirs})

# UCX loads its transports from the folder ucx beside its own libraries.
list(FILTER libraries INCLUDE REGEX "/libucs\\.so")
list(GET libraries 0 libucs)
get_filename_component(libucs ${libucs} REALPATH)
get_filename_component(ucx_folder ${libucs} DIRECTORY)
file(GLOB modules ${ucx_folder}/ucx/libu*.so.0)
file(GET_RUNTIME_DEPENDENCIES EXECUTABLES ${BINARIES} MODULES ${modules} RESOLVED_DEPENDENCIES_VAR libraries
     POST_EXCLUDE_REGEXES ${theirs})

set(copies "")
function(copy from to)
  get_filename_component(real ${from} REALPATH)
  configure_file(${real} ${to} COPYONLY)
  file(CHMOD ${to} PERMISSIONS OWNER_READ OWNER_WRITE OWNER_EXECUTE GROUP_READ GROUP_EXECUTE WORLD_READ WORLD_EXECUTE)
  run(strip --strip-unneeded ${to})
  list(APPEND copies ${to})
  set(copies "${copies}" PARENT_SCOPE)
endfunction()
foreach(binary IN LISTS BINARIES)
  get_filename_component(name ${binary} NAME)
  copy(${binary} ${FOLDER}/bin/${name})
endforeach()
foreach(library IN LISTS libraries)
  get_filename_component(name ${library} NAME)
  copy(${library} ${FOLDER}/lib/${name})
endforeach()
foreach(module IN LISTS modules)
  get_filename_component(name ${module} NAME)
  # A module is a library of the others, too, and is found as one.
  file(REMOVE ${FOLDER}/lib/${name})
  copy(${module} ${FOLDER}/lib/ucx/${name})
  file(RPATH_REMOVE FILE ${FOLDER}/lib/ucx/${name})
endforeach()

file(GLOB icu_data ${FOLDER}/lib/libicudata.so.*)
if(icu_data)
  get_filename_component(name ${icu_data} NAME)
  set(work ${FOLDER}/icu)
  file(MAKE_DIRECTORY ${work})
  execute_process(COMMAND nm -D --defined-only ${icu_data} OUTPUT_VARIABLE symbols)
  string(REGEX MATCH "icudt[0-9]+_dat" symbol "${symbols}")
  string(REPLACE "_dat" "l" package "${symbol}")
  run(objcopy -O binary -j .rodata ${icu_data} ${work}/${package}.dat)
  run(icupkg -d ${work} -x nfkc.nrm ${work}/${package}.dat)
  file(WRITE ${work}/list.txt "nfkc.nrm\n")
  file(MAKE_DIRECTORY ${work}/new)
  run(icupkg -s ${work} -a ${work}/list.txt new ${work}/new/${package}.dat)
  file(WRITE ${work}/data.s ".section .rodata\n.balign 16\n.globl ${symbol}\n.type ${symbol}, @object\n"
       "${symbol}: .incbin \"${work}/new/${package}.dat\"\n.size ${symbol}, . - ${symbol}\n.section .note.GNU-stack,\"\",@progbits\n")
  run(cc -shared -nostdlib -Wl,-soname,${name} -o ${icu_data} ${work}/data.s)
  file(REMOVE_RECURSE ${work})
endif()

# The oldest glibc that has every symbol asked for.
set(glibc 2.17)
foreach(file IN LISTS copies)
  execute_process(COMMAND objdump -T ${file} OUTPUT_VARIABLE symbols ERROR_QUIET)
  string(REGEX MATCHALL "GLIBC_[0-9.]+[0-9]" versions "${symbols}")
  list(REMOVE_DUPLICATES versions)
  foreach(version IN LISTS versions)
    string(REPLACE "GLIBC_" "" version ${version})
    if(version VERSION_GREATER glibc)
      set(glibc ${version})
    endif()
  endforeach()
endforeach()
execute_process(COMMAND git describe --always --dirty --abbrev=40 OUTPUT_VARIABLE commit OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
file(WRITE ${FOLDER}/MANIFEST "version ${VERSION}\ncommit ${commit}\ncuda ${CUDA}\narchitectures ${ARCHITECTURES}\nglibc ${glibc}\n")
list(LENGTH copies count)
message(STATUS "bundle: ${count} files, needs glibc ${glibc} or newer: ${FOLDER}")

if(ARCHIVE)
  get_filename_component(parent ${FOLDER} DIRECTORY)
  get_filename_component(name ${FOLDER} NAME)
  # One window over everything: binaries repeat each other. Two of them stand side by side where they are alike.
  run(bash -o pipefail -c "tar -C '${parent}' --sort=name --owner=0 --group=0 --numeric-owner --mtime=@0 -c '${name}' | xz -T1 --x86 --lzma2=preset=6,dict=192MiB > '${ARCHIVE}'")
  file(SIZE ${ARCHIVE} bytes)
  math(EXPR kilobytes "${bytes} / 1000")
  message(STATUS "bundle: ${ARCHIVE}, ${kilobytes} kB")
  if(MEGABYTES AND kilobytes GREATER "${MEGABYTES}000")
    message(FATAL_ERROR "bundle: ${kilobytes} kB are more than ${MEGABYTES} MB")
  endif()
endif()
