# Writes OUT, the source of runtime/tool/version.h: VERSION and, where SOURCE is the top of a git work tree, its commit
# (another repository above it would tell its own). A file that would stay the same is not touched.
execute_process(COMMAND git -C ${SOURCE} rev-parse --show-prefix OUTPUT_VARIABLE below ERROR_QUIET
                OUTPUT_STRIP_TRAILING_WHITESPACE RESULT_VARIABLE failed)
if(NOT failed AND "${below}" STREQUAL "")
  execute_process(COMMAND git -C ${SOURCE} rev-parse --short=12 HEAD OUTPUT_VARIABLE commit ERROR_QUIET
                  OUTPUT_STRIP_TRAILING_WHITESPACE RESULT_VARIABLE failed)
endif()
set(text "${VERSION}")
if(NOT failed AND "${below}" STREQUAL "")
  string(APPEND text " (commit ${commit})")
endif()
set(source "#include \"runtime/tool/version.h\"\n\nconst char* const aludel::kVersion = \"${text}\";\n")
set(old "")
if(EXISTS ${OUT})
  file(READ ${OUT} old)
endif()
if(NOT source STREQUAL old)
  file(WRITE ${OUT} "${source}")
endif()
