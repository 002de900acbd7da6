# tern_with_specific_features(ARCHITECTURES RESULT): the same CUDA architectures, with the features that one generation alone has. CMake calls a Hopper GPU
# at hand 90-real, for which nvcc has neither wgmma nor setmaxnreg: kernels with these would be left out, and slower ones would run without a word.
function(tern_with_specific_features architectures result)
  list(TRANSFORM architectures REPLACE "^90(-real)?$" "90a-real")
  set(${result} "${architectures}" PARENT_SCOPE)
endfunction()

# tern_check_architectures(ARCHITECTURES): an error for one before 8.0, whose nvcc errors in each kernel would not name the reason.
function(tern_check_architectures architectures)
  foreach(architecture IN LISTS architectures)
    if(architecture MATCHES "^([0-9]+)" AND CMAKE_MATCH_1 LESS 80)
      message(FATAL_ERROR "tern's kernels need a GPU of compute capability 8.0 or later, but CMAKE_CUDA_ARCHITECTURES has ${architecture}")
    endif()
  endforeach()
endfunction()
