# Writes device_headers.cpp: the texts of the headers that generated kernels and files of users include
# (src/compile/generated.cpp), so that a program compiles such kernels on a machine without them.
set(tern_device_headers
    compile/device/generated.cuh
    compile/device/integers.h
    compile/device/standard.h
    compile/device/user_file.h
    cuda/device/convert.cuh
    cuda/device/group.cuh
    cuda/device/indexer.cuh
    cuda/device/philox_dropout.cuh
    cuda/device/vec16.cuh
    ops/kernels/functors.h
    ops/kernels/math.h
    tensor/dtype.h
    tensor/random.h
    tensor/sizes.h)
set(tern_device_headers_source ${PROJECT_BINARY_DIR}/device_headers.cpp)
set(entries)
foreach(header IN LISTS tern_device_headers)
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/${header})
  file(READ ${PROJECT_SOURCE_DIR}/src/${header} text)
  string(APPEND entries "    {\"${header}\", R\"TERN(${text})TERN\"},\n")
endforeach()
string(CONCAT source
       "#include \"compile/generated.h\"\n\nnamespace tern::compiler {\n\n"
       "std::span<const DeviceHeader> device_headers() {\n  static constexpr DeviceHeader headers[] = {\n"
       "${entries}"
       "  };\n  return headers;\n}\n\n}  // namespace tern::compiler\n")
file(CONFIGURE OUTPUT ${tern_device_headers_source} CONTENT "${source}" @ONLY)
