# The tree that `cmake --install` gives: headers, static libraries, the package that find_package(tern) loads, and the programs.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/tern)
get_property(libraries GLOBAL PROPERTY TERN_LIBRARIES)
# The last ones carry what a static library needs at a user's link; none carries a path of this machine.
list(APPEND libraries tern_json tern_pcre2)
if(TERN_HAS_ONEDNN)
  list(APPEND libraries tern_onednn)
endif()
if(TERN_HAS_GLOO)
  list(APPEND libraries tern_gloo)
endif()
if(TERN_HAS_NCCL)
  list(APPEND libraries tern_nccl)
endif()
if(TERN_CUDA)
  list(APPEND libraries tern_cuda_toolkit)
endif()
if(TERN_HAS_CUPTI)
  list(APPEND libraries tern_cupti)
endif()
install(TARGETS ${libraries} EXPORT ternTargets ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(EXPORT ternTargets NAMESPACE tern:: DESTINATION ${package_dir})

foreach(program tern-translate tern-recall tern-bench tern-launch)
  if(TARGET ${program})
    install(TARGETS ${program} RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
  endif()
endforeach()

# A header is public where src/tern.h reaches it. That is asked when installing: a header may have changed since.
install(CODE "
  set(root \"${PROJECT_SOURCE_DIR}/src\")
  set(destination \"\${CMAKE_INSTALL_PREFIX}/${CMAKE_INSTALL_INCLUDEDIR}/tern\")
  include(\"${PROJECT_SOURCE_DIR}/cmake/install_headers.cmake\")")

configure_package_config_file(cmake/ternConfig.cmake.in ${PROJECT_BINARY_DIR}/ternConfig.cmake INSTALL_DESTINATION ${package_dir})
# Before 1.0 a minor version may change the interface.
write_basic_package_version_file(${PROJECT_BINARY_DIR}/ternConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/ternConfig.cmake ${PROJECT_BINARY_DIR}/ternConfigVersion.cmake DESTINATION ${package_dir})
install(FILES LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR})
