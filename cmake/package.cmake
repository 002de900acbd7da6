# cpack -G DEB and cpack -G TGZ, in a build of the preset `package`: scripts/test-package.sh makes both and tries them.
set(CPACK_PACKAGE_NAME tern)
set(CPACK_PACKAGE_VENDOR tern)
set(CPACK_PACKAGE_CONTACT "the authors of tern")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "Deep-learning framework in C++20: library and programs")
set(CPACK_PACKAGE_DESCRIPTION "Tensors with reverse-mode autodiff, modules, optimizers and training programs for CPU and CUDA.
The shared library is there for each level of x86-64, and the loader takes the one that the processor can run.")
set(CPACK_RESOURCE_FILE_LICENSE ${PROJECT_SOURCE_DIR}/LICENSE)
set(CPACK_STRIP_FILES ON)
set(CPACK_VERBATIM_VARIABLES ON)
set(CPACK_GENERATOR DEB TGZ)

set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SECTION libdevel)
# What the programs and libraries need is read from them; the headers need a compiler alone.
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS_PRIVATE_DIRS ${PROJECT_BINARY_DIR})
set(CPACK_DEBIAN_PACKAGE_SUGGESTS "g++, cmake, pkg-config")
file(WRITE ${PROJECT_BINARY_DIR}/debian/triggers "activate-noawait ldconfig\n")
set(CPACK_DEBIAN_PACKAGE_CONTROL_EXTRA ${PROJECT_BINARY_DIR}/debian/triggers)
set(CPACK_DEBIAN_PACKAGE_CONTROL_STRICT_PERMISSION ON)
include(CPack)
