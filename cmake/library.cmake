# tern::tern, the one target that users name: an interface of the static libraries, or, with BUILD_SHARED_LIBS, a shared library of their
# objects, which needs no package beside a user's program but those that it is linked to itself.
#
# TERN_CPU_VARIANTS gives the shared library three times, for x86-64, x86-64-v3 (AVX2) and x86-64-v4 (AVX-512), in the places
# where the dynamic loader of glibc 2.33 or later looks for the best that the processor can run: beside libtern.so.X, in
# glibc-hwcaps/x86-64-v3 and glibc-hwcaps/x86-64-v4. No code of ours chooses. Compiled three times are the CPU's kernels; the other objects
# are the same in all three. An inline function that objects of two levels have may come from either, which is right: a library is loaded
# only where all of it can run.
set(tern_part_of_variants_tern_cpu "[.]cpp$")

# tern_shared(NAME [LEVEL]): the shared library NAME of all objects, and those that do arithmetic for LEVEL.
function(tern_shared name level)
  add_library(${name} SHARED)
  get_property(parts GLOBAL PROPERTY TERN_LIBRARIES)
  foreach(part IN LISTS parts)
    set(pattern "${tern_part_of_variants_${part}}")
    if(level STREQUAL "" OR pattern STREQUAL "")
      target_sources(${name} PRIVATE $<TARGET_OBJECTS:${part}>)
    else()
      get_target_property(sources ${part} SOURCES)
      list(FILTER sources INCLUDE REGEX "${pattern}")
      set(own ${part}-${level})
      add_library(${own} OBJECT ${sources})
      foreach(property TERN_IS_PART COMPILE_DEFINITIONS COMPILE_FEATURES COMPILE_OPTIONS INCLUDE_DIRECTORIES LINK_LIBRARIES POSITION_INDEPENDENT_CODE)
        get_target_property(value ${part} ${property})
        if(value)
          set_property(TARGET ${own} PROPERTY ${property} "${value}")
        endif()
      endforeach()
      if(TERN_HAS_EIGEN)   # that a directory is SYSTEM is not among the properties
        target_include_directories(${own} SYSTEM PRIVATE ${EIGEN3_INCLUDE_DIR})
      endif()
      target_compile_options(${own} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-march=${level}>)
      if(level MATCHES "x86-64-v4|native")
        tern_avx512_options(${own} PRIVATE)
      endif()
      string(REPLACE "$" "[.]o$" objects "${pattern}")
      target_sources(${name} PRIVATE $<TARGET_OBJECTS:${own}> $<FILTER:$<TARGET_OBJECTS:${part}>,EXCLUDE,${objects}>)
    endif()
    # Its packages are its own: a user's program needs none at its link.
    get_target_property(links ${part} LINK_LIBRARIES)
    list(REMOVE_ITEM links ${parts})
    foreach(link IN LISTS links)
      target_link_libraries(${name} PRIVATE $<BUILD_INTERFACE:${link}>)
    endforeach()
  endforeach()
  target_include_directories(${name} INTERFACE ${tern_include_directories})
  target_compile_features(${name} PUBLIC cxx_std_20)
  if(TERN_CUDA)
    target_compile_definitions(${name} INTERFACE TERN_CUDA=1)
  endif()
  # Before 1.0 a minor version may change the interface, so it is a part of the library's name.
  set_target_properties(${name} PROPERTIES OUTPUT_NAME tern LINKER_LANGUAGE CXX VERSION ${PROJECT_VERSION}
                        SOVERSION ${PROJECT_VERSION_MAJOR}.${PROJECT_VERSION_MINOR})
  if(CMAKE_SYSTEM_NAME STREQUAL Linux)
    # Calls within the library need no table, and a program's copy of an inline function takes no place of the library's own, which may be
    # for a better processor. Nothing that the library needs is missing.
    target_link_options(${name} PRIVATE LINKER:-Bsymbolic-functions LINKER:-z,defs LINKER:--version-script=${PROJECT_SOURCE_DIR}/cmake/export.map)
    set_property(TARGET ${name} PROPERTY LINK_DEPENDS ${PROJECT_SOURCE_DIR}/cmake/export.map)
  endif()
endfunction()

if(BUILD_SHARED_LIBS)
  tern_shared(tern "")
  set(tern_levels)
  if(TERN_CPU_VARIANTS AND CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|AMD64|amd64)$")
    set(tern_levels ${TERN_CPU_LEVELS})
  endif()
  foreach(level IN LISTS tern_levels)
    tern_shared(tern-${level} ${level})
    set_target_properties(tern-${level} PROPERTIES LIBRARY_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/glibc-hwcaps/${level})
    add_dependencies(tern tern-${level})   # a program of the build tree takes the best, too
  endforeach()
  set_property(GLOBAL PROPERTY TERN_TARGETS tern)
else()
  if(TERN_CPU_VARIANTS)
    message(FATAL_ERROR "TERN_CPU_VARIANTS is for the shared library: configure with -DBUILD_SHARED_LIBS=ON as well")
  endif()
  add_library(tern INTERFACE)
  target_link_libraries(tern INTERFACE tern_compile tern_io tern_text tern_data tern_models tern_train tern_profile tern_parallel tern_trainer)
  get_property(parts GLOBAL PROPERTY TERN_LIBRARIES)
  set_property(GLOBAL PROPERTY TERN_TARGETS ${parts} tern)
endif()
add_library(tern::tern ALIAS tern)
