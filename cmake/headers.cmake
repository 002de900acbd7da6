# Where users find the headers: #include <tern/tern.h>, <tern/nn/module.h>. Sources of ours include "nn/module.h" from src.
include(cmake/install_headers.cmake)
if(TERN_INSTALL)
  include(GNUInstallDirs)
endif()

set(TERN_HAS_CUDA 0)
if(TERN_CUDA)
  set(TERN_HAS_CUDA 1)
endif()
set(tern_include ${PROJECT_BINARY_DIR}/include)
configure_file(cmake/version.h.in ${tern_include}/tern/version.h @ONLY)

# Each source of ours would be another one to ccache with a directory of the build on its path: those that say the version have it alone.
set_source_files_properties(src/backend/device.cpp src/ops/cpu/variant.cpp src/text/metrics.cpp PROPERTIES INCLUDE_DIRECTORIES ${tern_include})

if(PROJECT_IS_TOP_LEVEL)
  # Programs and tests of ours include as the library does, and <tern/tern.h> is a link to the same files.
  set(tern_users_directories ${PROJECT_SOURCE_DIR}/src ${tern_include})
  file(GLOB entries RELATIVE ${PROJECT_SOURCE_DIR}/src ${PROJECT_SOURCE_DIR}/src/*)
  foreach(entry IN LISTS entries)
    file(CREATE_LINK ${PROJECT_SOURCE_DIR}/src/${entry} ${tern_include}/tern/${entry} SYMBOLIC)
  endforeach()
else()
  # A user's project gets what an installed tree has. With src on its path a header of ours would include the user's own nn/module.h.
  set(tern_users_directories ${tern_include})
  tern_write_headers(${PROJECT_SOURCE_DIR}/src ${tern_include})
  list(TRANSFORM tern_headers PREPEND ${PROJECT_SOURCE_DIR}/src/)
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${tern_headers})
endif()
set(tern_include_directories
    "$<BUILD_INTERFACE:$<IF:$<BOOL:$<TARGET_PROPERTY:TERN_IS_PART>>,${PROJECT_SOURCE_DIR}/src,${tern_users_directories}>>"
    $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
