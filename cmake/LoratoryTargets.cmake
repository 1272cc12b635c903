# What every target of the project shares, and the helpers that make rooms and tests.

find_program(CCACHE_PROGRAM ccache)
if(CCACHE_PROGRAM AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  # The sloppiness that ccache asks for where there are precompiled headers.
  set(CMAKE_CXX_COMPILER_LAUNCHER "${CMAKE_COMMAND}" -E env
    CCACHE_SLOPPINESS=pch_defines,time_macros "${CCACHE_PROGRAM}")
  set(CMAKE_CUDA_COMPILER_LAUNCHER "${CCACHE_PROGRAM}")
endif()
if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "Build type" FORCE)
endif()
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)

# Consumers get C++20 and the include root; the project's own code also warnings and sanitizers.
# -ffp-contract=off: the same seed gives the same bytes whether or not the machine has FMA.
add_library(loratory_private_flags INTERFACE)
target_compile_features(loratory_private_flags INTERFACE cxx_std_20)
target_compile_options(loratory_private_flags INTERFACE
  $<$<COMPILE_LANGUAGE:CXX>:-Wall -Wextra -Wshadow -Wnon-virtual-dtor>
  $<$<COMPILE_LANGUAGE:CXX>:-Wconversion -Wno-sign-conversion>
  # GCC 12 sees overlaps in std::string that are not there (GCC bug 105651).
  $<$<AND:$<COMPILE_LANGUAGE:CXX>,$<CXX_COMPILER_ID:GNU>>:-Wno-restrict>
  $<$<COMPILE_LANGUAGE:CXX>:-ffp-contract=off>
  # Lines in backtraces, no variables: less to compile. To step through code: the Debug build type.
  $<$<AND:$<COMPILE_LANGUAGE:CXX>,$<CONFIG:RelWithDebInfo>>:-g1>
  $<$<AND:$<BOOL:${LORATORY_WARNINGS_AS_ERRORS}>,$<COMPILE_LANGUAGE:CXX>>:-Werror>)
if(LORATORY_SANITIZE)
  target_compile_options(loratory_private_flags INTERFACE
    -fsanitize=${LORATORY_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all)
  target_link_options(loratory_private_flags INTERFACE -fsanitize=${LORATORY_SANITIZE})
endif()
if(LORATORY_BUILD_FUZZERS)
  # Coverage of the libraries too: without it libFuzzer is blind to what it steers through.
  target_compile_options(loratory_private_flags INTERFACE -fsanitize=fuzzer-no-link)
endif()

# The headers among the sources: what is installed.
function(loratory_add_headers target)
  set(headers ${ARGN})
  list(FILTER headers INCLUDE REGEX "\\.hpp$")
  target_sources(${target} PUBLIC FILE_SET HEADERS BASE_DIRS "${PROJECT_SOURCE_DIR}"
                                  FILES ${headers})
endfunction()

# Compiles the sources of a folder together, ten at a time: most of the time goes into the headers
# that neighbours share. A folder is then one scope for what is file-local.
function(loratory_compile_by_folder target)
  set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_MODE GROUP)
  # GCC takes a source that is included for a header, which could not have file-local types.
  target_compile_options(${target} PRIVATE
    $<$<COMPILE_LANG_AND_ID:CXX,GNU>:-Wno-subobject-linkage>)
  set(sources ${ARGN})
  list(FILTER sources INCLUDE REGEX "\\.cpp$")
  foreach(source IN LISTS sources)
    cmake_path(GET source PARENT_PATH folder)
    cmake_path(GET folder FILENAME folder)
    if(NOT DEFINED num_in_${folder})
      set(num_in_${folder} 0)
    endif()
    math(EXPR part "${num_in_${folder}} / 10")
    math(EXPR num_in_${folder} "${num_in_${folder}} + 1")
    set_source_files_properties("${source}" PROPERTIES UNITY_GROUP ${folder}_${part})
  endforeach()
endfunction()

# loratory_add_room(reference SOURCES ... LINK ...): one room's library, alias loratory::<room>.
function(loratory_add_room room)
  cmake_parse_arguments(ARG "" "" "SOURCES;LINK;LINK_PRIVATE" ${ARGN})
  set(target loratory_${room})
  add_library(${target} STATIC ${ARG_SOURCES})
  add_library(loratory::${room} ALIAS ${target})
  set_target_properties(${target} PROPERTIES EXPORT_NAME ${room} POSITION_INDEPENDENT_CODE ON)
  target_compile_features(${target} PUBLIC cxx_std_20)
  target_include_directories(${target} PUBLIC
    $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}>
    $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}/loratory>)
  target_link_libraries(${target} PUBLIC ${ARG_LINK}
    PRIVATE $<BUILD_INTERFACE:loratory_private_flags> ${ARG_LINK_PRIVATE})
  loratory_add_headers(${target} ${ARG_SOURCES})
  loratory_compile_by_folder(${target} ${ARG_SOURCES})
  set_property(GLOBAL APPEND PROPERTY LORATORY_ROOMS ${room})
endfunction()

# What is tested is optimised, its test need not be: half of the compiling. A property runs its own
# code a thousand times, so a little.
function(loratory_test_flags target label)
  set(level $<IF:$<STREQUAL:${label},property>,-O1,-O0>)
  target_compile_options(${target} PRIVATE $<$<CONFIG:RelWithDebInfo>:${level}>
    $<$<COMPILE_LANG_AND_ID:CXX,GNU>:-fpch-preprocess>)  # for ccache
endfunction()

# Creates on the first call, for each label, the target that precompiles what the tests of the label
# have in common: a second less to compile in every file.
function(loratory_precompile_test_headers label out)
  set(headers loratory_${label}_headers)
  set(${out} ${headers} PARENT_SCOPE)
  if(TARGET ${headers})
    return()
  endif()
  set(source "${PROJECT_BINARY_DIR}/${headers}.cpp")
  file(CONFIGURE OUTPUT "${source}" CONTENT "")
  add_library(${headers} OBJECT "${source}")
  target_link_libraries(${headers} PRIVATE loratory_private_flags fmt::fmt GTest::gmock)
  loratory_test_flags(${headers} ${label})
  target_precompile_headers(${headers} PRIVATE <gmock/gmock.h> <gtest/gtest.h> <fmt/format.h>
    <algorithm> <cmath> <filesystem> <fstream> <functional> <map> <memory> <optional> <random> <set>
    <span> <sstream> <string> <unordered_map> <variant> <vector>
    $<$<STREQUAL:${label},property>:<rapidcheck/gtest.h$<ANGLE-R>>)
endfunction()

# The main of every test program, created on the first call.
function(loratory_test_main)
  if(NOT TARGET loratory_test_main)
    add_library(loratory_test_main STATIC "${PROJECT_SOURCE_DIR}/tests/main.cpp")
    target_link_libraries(loratory_test_main PRIVATE loratory_private_flags PUBLIC GTest::gmock)
  endif()
endfunction()

# loratory_add_test(name LABEL unit SOURCES ... LINK ...): one GoogleTest binary; each of its tests
# is a CTest test with the label (unit, property, golden, gpu, fuzz-smoke, long).
function(loratory_add_test name)
  cmake_parse_arguments(ARG "" "LABEL" "SOURCES;LINK" ${ARGN})
  include(GoogleTest)
  loratory_test_main()
  add_executable(${name} ${ARG_SOURCES})
  target_link_libraries(${name} PRIVATE loratory_private_flags ${ARG_LINK}
                                        fmt::fmt GTest::gmock loratory_test_main)
  target_compile_definitions(${name} PRIVATE LORATORY_SOURCE_DIR="${PROJECT_SOURCE_DIR}")
  loratory_test_flags(${name} ${ARG_LABEL})
  list(LENGTH ARG_SOURCES num_sources)
  if(num_sources GREATER 1 AND NOT ARG_LABEL STREQUAL "gpu")  # those share names
    loratory_compile_by_folder(${name} ${ARG_SOURCES})
  endif()
  if(ARG_LABEL MATCHES "unit|property")
    loratory_precompile_test_headers(${ARG_LABEL} headers)
    target_precompile_headers(${name} REUSE_FROM ${headers})
  endif()
  set(environment "")
  if(ARG_LABEL STREQUAL "property")
    set(environment ENVIRONMENT "RC_PARAMS=max_success=${LORATORY_PROPERTY_CASES}")
  endif()
  gtest_discover_tests(${name} TEST_PREFIX "${name}/" DISCOVERY_TIMEOUT 60
    PROPERTIES LABELS "${ARG_LABEL}" TIMEOUT 600 ${environment})
endfunction()

# Sets OUT to true when gpu/ can be built; says in one line why not.
macro(loratory_find_cuda out)
  set(${out} OFF)
  if(NOT LORATORY_CUDA STREQUAL "OFF" AND EXISTS "${CMAKE_CURRENT_SOURCE_DIR}/gpu/CMakeLists.txt")
    include(CheckLanguage)
    check_language(CUDA)
    if(CMAKE_CUDA_COMPILER)
      if(NOT CMAKE_CUDA_ARCHITECTURES)
        set(CMAKE_CUDA_ARCHITECTURES 90a)
      endif()
      enable_language(CUDA)
      find_package(CUDAToolkit REQUIRED)
      set(${out} ON)
    elseif(LORATORY_CUDA STREQUAL "ON")
      message(FATAL_ERROR "LORATORY_CUDA=ON but no CUDA compiler was found; put nvcc on PATH")
    else()
      message(STATUS "gpu/: not built, no CUDA compiler found")
    endif()
  endif()
endmacro()
