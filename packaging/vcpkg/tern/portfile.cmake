# An overlay port: vcpkg install tern --overlay-ports=packaging/vcpkg. It builds the checkout that it stands in.
get_filename_component(SOURCE_PATH ${CMAKE_CURRENT_LIST_DIR}/../../.. ABSOLUTE)
vcpkg_check_features(OUT_FEATURE_OPTIONS features FEATURES eigen TERN_EIGEN)
vcpkg_cmake_configure(
  SOURCE_PATH ${SOURCE_PATH}
  OPTIONS -DTERN_NATIVE=OFF -DTERN_BUILD_APPS=OFF -DTERN_BUILD_TESTS=OFF -DTERN_INSTALL=ON -DTERN_ONEDNN=OFF -DTERN_GLOO=OFF ${features})
vcpkg_cmake_install()
vcpkg_cmake_config_fixup(PACKAGE_NAME tern CONFIG_PATH lib/cmake/tern)
vcpkg_fixup_pkgconfig()
file(REMOVE_RECURSE ${CURRENT_PACKAGES_DIR}/debug/include ${CURRENT_PACKAGES_DIR}/debug/share)
vcpkg_install_copyright(FILE_LIST ${SOURCE_PATH}/LICENSE)
