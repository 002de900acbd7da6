# cmake -DPREFIX=DIR -DBUILD=DIR [-DOPTIONS=...] -P packaging/vcpkg/steps.cmake: the steps of the port without vcpkg. The functions that it calls do here what vcpkg's do in
# a Release build for the machine at hand, with the system's packages in place of vcpkg's, so that the port's own lines are run:
# scripts/test-recipes.sh. What vcpkg does besides (its own packages, the Debug build, its checks of what was installed) is not.
cmake_minimum_required(VERSION 3.25)
set(CURRENT_PACKAGES_DIR ${PREFIX})
function(run)
  execute_process(COMMAND ${ARGN} COMMAND_ERROR_IS_FATAL ANY)
endfunction()

# Called with no feature chosen, as `vcpkg install tern` does.
function(vcpkg_check_features)
  cmake_parse_arguments(arg "" "OUT_FEATURE_OPTIONS" "FEATURES" ${ARGN})
  set(options)
  while(arg_FEATURES)
    list(POP_FRONT arg_FEATURES feature option)
    list(APPEND options -D${option}=OFF)
  endwhile()
  set(${arg_OUT_FEATURE_OPTIONS} ${options} PARENT_SCOPE)
endfunction()

function(vcpkg_cmake_configure)
  cmake_parse_arguments(arg "" "SOURCE_PATH" "OPTIONS" ${ARGN})
  run(${CMAKE_COMMAND} -G Ninja -S ${arg_SOURCE_PATH} -B ${BUILD} -DCMAKE_BUILD_TYPE=Release -DCMAKE_INSTALL_PREFIX=${PREFIX}
      -DCMAKE_INSTALL_LIBDIR=lib -DBUILD_SHARED_LIBS=OFF ${arg_OPTIONS} ${OPTIONS})
endfunction()

function(vcpkg_cmake_install)
  run(${CMAKE_COMMAND} --build ${BUILD} --target install)
endfunction()

# The package's files move to share/NAME, one directory less deep: what they say of their own place follows.
function(vcpkg_cmake_config_fixup)
  cmake_parse_arguments(arg "" "PACKAGE_NAME;CONFIG_PATH" "" ${ARGN})
  file(MAKE_DIRECTORY ${PREFIX}/share)
  file(RENAME ${PREFIX}/${arg_CONFIG_PATH} ${PREFIX}/share/${arg_PACKAGE_NAME})
  file(GLOB files ${PREFIX}/share/${arg_PACKAGE_NAME}/*.cmake)
  foreach(file IN LISTS files)
    file(READ ${file} text)
    string(REPLACE "\${CMAKE_CURRENT_LIST_DIR}/../../../" "\${CMAKE_CURRENT_LIST_DIR}/../../" text "${text}")
    string(REPLACE "get_filename_component(_IMPORT_PREFIX \"\${_IMPORT_PREFIX}\" PATH)\nget_filename_component(_IMPORT_PREFIX"
                   "get_filename_component(_IMPORT_PREFIX" text "${text}")
    file(WRITE ${file} "${text}")
  endforeach()
endfunction()

function(vcpkg_fixup_pkgconfig)
  file(GLOB_RECURSE files ${PREFIX}/lib/pkgconfig/*.pc)
  if(NOT files)
    message(FATAL_ERROR "no file for pkg-config was installed")
  endif()
endfunction()

function(vcpkg_install_copyright)
  cmake_parse_arguments(arg "" "" "FILE_LIST" ${ARGN})
  file(COPY_FILE ${arg_FILE_LIST} ${PREFIX}/share/tern/copyright)
endfunction()

include(${CMAKE_CURRENT_LIST_DIR}/tern/portfile.cmake)
