# tern_with_specific_features(ARCHITECTURES RESULT): the same CUDA architectures, with the features that one generation alone has. CMake calls a Hopper GPU
# at hand 90-real, for which nvcc has neither wgmma nor setmaxnreg: kernels with these would be left out, and slower ones would run without a word.
function(tern_with_specific_features architectures result)
  list(TRANSFORM architectures REPLACE "^90(-real)?$" "90a-real")
  set(${result} "${architectures}" PARENT_SCOPE)
endfunction()
