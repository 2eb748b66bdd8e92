# The target `image`: build/PRESET/image/aludel.oci.tar, an OCI archive of the servers for this machine's Debian (deploy/image), made
# from the packages of AludelPackages.cmake.
if(NOT TARGET packages)
  return()
endif()
set(image ${CMAKE_BINARY_DIR}/image/aludel.oci.tar)
set(make_image ${Python3_EXECUTABLE} ${PROJECT_SOURCE_DIR}/deploy/image/make_image.py --packages ${CMAKE_BINARY_DIR}/packages
    --out ${image})
add_custom_target(image COMMAND ${make_image} DEPENDS packages WORKING_DIRECTORY ${PROJECT_SOURCE_DIR} VERBATIM COMMENT "Container image")

if(ALUDEL_TESTS)
  add_test(NAME make_image COMMAND ${make_image} WORKING_DIRECTORY ${PROJECT_SOURCE_DIR})
  aludel_test_settings(make_image TIMEOUT 120 FIXTURES_REQUIRED packages FIXTURES_SETUP image)
  add_test(NAME image_test
           COMMAND ${Python3_EXECUTABLE} tests/deploy/image/image_test.py --image ${image} --packages ${CMAKE_BINARY_DIR}/packages
           WORKING_DIRECTORY ${PROJECT_SOURCE_DIR})
  aludel_test_settings(image_test TIMEOUT 240 FIXTURES_REQUIRED image SKIP_RETURN_CODE 77 LABELS e2e)
  add_test(NAME containerfile_test
           COMMAND ${Python3_EXECUTABLE} tests/deploy/image/containerfile_test.py --image ${image} --packages ${CMAKE_BINARY_DIR}/packages
           WORKING_DIRECTORY ${PROJECT_SOURCE_DIR})
  aludel_test_settings(containerfile_test TIMEOUT 300 FIXTURES_REQUIRED image SKIP_RETURN_CODE 77 LABELS e2e)
endif()
