"""conan create packaging/conan -s compiler.cppstd=20 --build=missing [-o "&:shared=True"]: this checkout, as a package of Conan 2.

GCC 12 is C++17 in the profile that Conan detects, so the command says the standard."""

import os

from conan import ConanFile
from conan.tools.build import check_min_cppstd
from conan.tools.cmake import CMake, CMakeDeps, CMakeToolchain, cmake_layout
from conan.tools.files import copy, load


class Tern(ConanFile):
    name = "tern"
    license = "Apache-2.0"
    description = "Tensors and reverse-mode autodiff, native: a small deep-learning framework in C++20"
    package_type = "library"
    settings = "os", "arch", "compiler", "build_type"
    options = {"shared": [True, False], "eigen": [True, False]}
    default_options = {"shared": False, "eigen": True}
    requires = "fmt/[>=9 <12]", "nlohmann_json/[>=3.11 <4]", "pcre2/[>=10.40 <11]", "utf8proc/[>=2.8 <3]", "zlib/[>=1.2.13 <2]", "zstd/[>=1.5 <2]"

    def set_version(self):
        text = load(self, os.path.join(self.recipe_folder, "..", "..", "CMakeLists.txt"))
        self.version = text.split("project(tern VERSION ")[1].split()[0]

    def requirements(self):
        if self.options.eigen:
            self.requires("eigen/3.4.0")

    def validate(self):
        check_min_cppstd(self, 20)

    def export_sources(self):
        root = os.path.join(self.recipe_folder, "..", "..")
        for pattern in ("CMakeLists.txt", "LICENSE", "cmake/*", "src/*"):
            copy(self, pattern, root, self.export_sources_folder)

    def layout(self):
        cmake_layout(self)

    def generate(self):
        CMakeDeps(self).generate()
        chain = CMakeToolchain(self)
        chain.cache_variables.update(
            TERN_NATIVE=False, TERN_BUILD_APPS=False, TERN_BUILD_TESTS=False, TERN_INSTALL=True, TERN_ONEDNN=False, TERN_GLOO=False,
            TERN_EIGEN=bool(self.options.eigen), BUILD_SHARED_LIBS=bool(self.options.shared),
        )
        chain.generate()

    def build(self):
        cmake = CMake(self)
        cmake.configure()
        cmake.build()

    def package(self):
        copy(self, "LICENSE", self.source_folder, os.path.join(self.package_folder, "licenses"))
        CMake(self).install()

    def package_info(self):
        # tern's own package file says how its libraries hang together.
        self.cpp_info.set_property("cmake_find_mode", "none")
        self.cpp_info.builddirs = [os.path.join("lib", "cmake", "tern")]
