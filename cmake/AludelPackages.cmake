# The target `packages`: build/PRESET/packages/aludel-{server,gateway,tools}_VERSION_amd64.deb for the Debian that this
# machine runs, whose libraries they depend on. Units, users and folders are in deploy/systemd, scripts in deploy/packages.
find_package(Python3 COMPONENTS Interpreter QUIET)
find_program(ALUDEL_DPKG_SHLIBDEPS dpkg-shlibdeps)
find_program(ALUDEL_FILE file)  # CPack asks it which files are programs
if(NOT Python3_FOUND OR NOT ALUDEL_DPKG_SHLIBDEPS OR NOT ALUDEL_FILE OR ALUDEL_SANITIZE)
  message(STATUS "No Python 3, no dpkg-dev, no file, or sanitizers: the target packages is left out")
  return()
endif()

set(server_programs aludel-prefill aludel-decode)
set(gateway_programs aludel-gateway)
set(tools_programs aludel-bench aludel-calibrate aludel-eval aludel-inspect)
set(server_roles prefill decode)
set(gateway_roles gateway)
set(server_configs prefill-demo=prefill decode-chat=decode-chat decode-json=decode-json)
set(gateway_configs gateway-demo=gateway)
set(demo ${PROJECT_SOURCE_DIR}/deploy/demo)
set(made ${CMAKE_BINARY_DIR}/packages)
set(from ${PROJECT_SOURCE_DIR}/deploy)
set(CMAKE_INSTALL_DEFAULT_DIRECTORY_PERMISSIONS OWNER_READ OWNER_WRITE OWNER_EXECUTE GROUP_READ GROUP_EXECUTE WORLD_READ
    WORLD_EXECUTE)
set(CMAKE_SKIP_INSTALL_ALL_DEPENDENCY ON)  # tests are no part of a package

function(gzip_into output input)
  add_custom_command(OUTPUT ${output} COMMAND gzip -9nc ${input} > ${output} DEPENDS ${input} VERBATIM)
endfunction()

file(MAKE_DIRECTORY ${made})
gzip_into(${made}/changelog.gz ${from}/packages/changelog)
set(files ${made}/changelog.gz)
set(programs ${server_programs} ${gateway_programs} ${tools_programs})
foreach(program IN LISTS programs)
  add_custom_command(OUTPUT ${made}/${program}.1
    COMMAND ${Python3_EXECUTABLE} ${from}/packages/make_man_page.py $<TARGET_FILE:${program}> --version ${PROJECT_VERSION}
            --out ${made}/${program}.1
    DEPENDS ${program} ${from}/packages/make_man_page.py VERBATIM)
  gzip_into(${made}/${program}.1.gz ${made}/${program}.1)
  list(APPEND files ${made}/${program}.1.gz)
endforeach()

# What every package has: programs, manual pages and the two files that Debian asks for.
foreach(component server gateway tools)
  install(TARGETS ${${component}_programs} RUNTIME DESTINATION bin COMPONENT ${component})
  list(TRANSFORM ${component}_programs REPLACE "(.+)" "${made}/\\1.1.gz" OUTPUT_VARIABLE pages)
  install(FILES ${pages} DESTINATION share/man/man1 COMPONENT ${component})
  install(FILES ${from}/packages/copyright ${made}/changelog.gz DESTINATION share/doc/aludel-${component} COMPONENT ${component})
endforeach()

# aludel_service_package(COMPONENT MODELS): units, user, folders, configurations of the demo (conffiles), whose models are
# found in the folder MODELS, and scripts.
function(aludel_service_package component models)
  set(PACKAGE aludel-${component})
  set(ROOM ${component})
  list(JOIN ${component}_roles " " ROLES)
  foreach(script postinst prerm postrm)
    configure_file(${from}/packages/${script}.in ${made}/${component}/${script} @ONLY
      FILE_PERMISSIONS OWNER_READ OWNER_WRITE OWNER_EXECUTE GROUP_READ GROUP_EXECUTE WORLD_READ WORLD_EXECUTE)
  endforeach()
  foreach(role IN LISTS ${component}_roles)
    install(FILES ${from}/systemd/aludel-${role}@.service DESTINATION lib/systemd/system COMPONENT ${component})
  endforeach()
  install(FILES ${from}/systemd/${PACKAGE}.sysusers DESTINATION lib/sysusers.d RENAME ${PACKAGE}.conf COMPONENT ${component})
  install(FILES ${from}/systemd/${PACKAGE}.tmpfiles DESTINATION lib/tmpfiles.d RENAME ${PACKAGE}.conf COMPONENT ${component})
  set(conffiles "")
  foreach(pair IN LISTS ${component}_configs)
    string(REPLACE "=" ";" pair ${pair})
    list(GET pair 0 name)
    list(GET pair 1 source)
    set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/configs/${source}.textproto)
    file(READ ${PROJECT_SOURCE_DIR}/configs/${source}.textproto text)
    string(REPLACE "configs/${source}.textproto" "/etc/aludel/${name}.textproto" text "${text}")
    string(REPLACE "\"deploy/demo/" "\"${models}/" text "${text}")
    file(CONFIGURE OUTPUT ${made}/${component}/${name}.textproto CONTENT "${text}" @ONLY)
    install(FILES ${made}/${component}/${name}.textproto DESTINATION /etc/aludel COMPONENT ${component})
    string(APPEND conffiles "/etc/aludel/${name}.textproto\n")
  endforeach()
  file(CONFIGURE OUTPUT ${made}/${component}/conffiles CONTENT "${conffiles}" @ONLY)
endfunction()
aludel_service_package(server /usr/share/aludel/demo)
aludel_service_package(gateway /usr/share/aludel-gateway/demo)
install(FILES ${from}/systemd/gpu.conf ${from}/systemd/rdma.conf DESTINATION share/doc/aludel-server/examples COMPONENT server)
install(DIRECTORY ${demo}/base ${demo}/chat ${demo}/json ${demo}/codec DESTINATION share/aludel/demo COMPONENT server)
foreach(model chat json)  # a gateway reads no weights
  install(FILES ${demo}/${model}/tokenizer.json ${demo}/${model}/tokenizer_config.json
          DESTINATION share/aludel-gateway/demo/${model} COMPONENT gateway)
endforeach()

set(CPACK_GENERATOR DEB)
set(CPACK_COMPONENTS_ALL server gateway tools)
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_PACKAGE_NAME aludel)
# Debian asks for an address. The project has none: .invalid is the domain that can never be anyone's (RFC 2606).
set(CPACK_PACKAGE_CONTACT "Aludel <noreply@aludel.invalid>")
set(CPACK_PACKAGE_DIRECTORY ${made})
set(CPACK_STRIP_FILES ON)
set(CPACK_INSTALL_DEFAULT_DIRECTORY_PERMISSIONS ${CMAKE_INSTALL_DEFAULT_DIRECTORY_PERMISSIONS})
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_SECTION net)
set(CPACK_DEBIAN_PACKAGE_CONTROL_STRICT_PERMISSION ON)
set(CPACK_COMPONENT_SERVER_DESCRIPTION "prefill and decode servers for language models
Disaggregated serving of a base model and its fine-tunes: a prefill server
computes a prompt's KV cache once and ships codes of it to the decode servers
of several consumers. With systemd units, and a small demo pair of models.")
set(CPACK_COMPONENT_GATEWAY_DESCRIPTION "OpenAI-compatible gateway in front of decode servers
Takes HTTP requests with TLS, API keys and limits, and routes them to the
decode servers of the package aludel-server. With a systemd unit.")
set(CPACK_COMPONENT_TOOLS_DESCRIPTION "tools to calibrate, check and measure Aludel servers
aludel-calibrate fits a codec between a base model and its fine-tunes,
aludel-eval measures what it loses, aludel-inspect checks models and artifacts
and plans memory, aludel-bench loads an OpenAI endpoint and measures it.")
foreach(component server gateway tools)
  string(TOUPPER ${component} upper)
  set(CPACK_DEBIAN_${upper}_PACKAGE_NAME aludel-${component})
  set(CPACK_DEBIAN_${upper}_FILE_NAME DEB-DEFAULT)
endforeach()
foreach(component server gateway)
  string(TOUPPER ${component} upper)
  set(CPACK_DEBIAN_${upper}_PACKAGE_DEPENDS systemd)
  set(CPACK_DEBIAN_${upper}_PACKAGE_CONTROL_EXTRA
      "${made}/${component}/conffiles;${made}/${component}/postinst;${made}/${component}/prerm;${made}/${component}/postrm")
endforeach()
string(REGEX MATCH "^[0-9]+" dnnl_major "${dnnl_VERSION}")
set(CPACK_DEBIAN_SERVER_PACKAGE_RECOMMENDS libdnnl${dnnl_major})  # loaded where it is installed
set(CPACK_DEBIAN_SERVER_PACKAGE_SUGGESTS "aludel-gateway, aludel-tools")
set(CPACK_DEBIAN_GATEWAY_PACKAGE_SUGGESTS aludel-server)
if(ALUDEL_HAVE_VIDEO)
  # Loaded, in these versions alone, where a format of packing video is asked for.
  string(REGEX MATCH "^[0-9]+" avcodec_major "${AVCODEC_libavcodec_VERSION}")
  find_file(ALUDEL_X265_CONFIG x265_config.h HINTS ${X265_INCLUDE_DIRS} REQUIRED)
  file(STRINGS ${ALUDEL_X265_CONFIG} x265_build REGEX "define X265_BUILD ")
  string(REGEX MATCH "[0-9]+$" x265_build "${x265_build}")
  set(video_packages "libavcodec${avcodec_major}, libx265-${x265_build}")
  string(APPEND CPACK_DEBIAN_SERVER_PACKAGE_SUGGESTS ", ${video_packages}")
  set(CPACK_DEBIAN_TOOLS_PACKAGE_SUGGESTS "${video_packages}")
endif()
include(CPack)

add_custom_target(packages COMMAND ${CMAKE_CPACK_COMMAND} -G DEB DEPENDS ${files} ${programs}
                  WORKING_DIRECTORY ${CMAKE_BINARY_DIR} VERBATIM COMMENT "Debian packages")

if(ALUDEL_TESTS)
  add_test(NAME make_packages COMMAND ${CMAKE_COMMAND} --build ${CMAKE_BINARY_DIR} --target packages)
  aludel_test_settings(make_packages TIMEOUT 300 FIXTURES_SETUP packages)
  add_test(NAME packages_test
           COMMAND ${Python3_EXECUTABLE} tests/deploy/packages/packages_test.py --packages ${made}
           WORKING_DIRECTORY ${PROJECT_SOURCE_DIR})
  aludel_test_settings(packages_test TIMEOUT 300 FIXTURES_REQUIRED packages LABELS e2e long)
  # Programs of an earlier commit, where they are cheap to build: manifests_previous_test upgrades from them.
  set(previous ${CMAKE_BINARY_DIR}/previous)
  add_test(NAME make_previous
           COMMAND ${Python3_EXECUTABLE} tests/deploy/kubernetes/previous_build.py --build ${CMAKE_BINARY_DIR} --out ${previous}
           WORKING_DIRECTORY ${PROJECT_SOURCE_DIR})
  # It compiles on every core: not beside tests with time bounds.
  aludel_test_settings(make_previous TIMEOUT 900 FIXTURES_REQUIRED packages FIXTURES_SETUP previous RUN_SERIAL TRUE
                       LABELS e2e long)
  # The packages, unpacked, are the image that pods run.
  function(aludel_manifests_test name script)
    add_test(NAME ${name}
             COMMAND ${Python3_EXECUTABLE} tests/deploy/kubernetes/${script} --packages ${made} --build ${CMAKE_BINARY_DIR}/tests/deploy ${ARGN}
             WORKING_DIRECTORY ${PROJECT_SOURCE_DIR})
    aludel_test_settings(${name} TIMEOUT 300 FIXTURES_REQUIRED packages SKIP_RETURN_CODE 77 LABELS e2e)
  endfunction()
  foreach(test manifests overlays secrets)
    aludel_manifests_test(${test}_test ${test}_test.py)
  endforeach()
  aludel_manifests_test(manifests_previous_test manifests_test.py --previous ${previous}/bin)
  set_property(TEST manifests_previous_test APPEND PROPERTY FIXTURES_REQUIRED previous)
  set_property(TEST manifests_previous_test APPEND PROPERTY LABELS long)
endif()
