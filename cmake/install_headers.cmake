# tern_write_headers(ROOT DESTINATION): writes ROOT/tern.h and every header of ours that it includes, directly or not, to DESTINATION/tern, with
# "nn/module.h" as <tern/nn/module.h>: quoted, it could be found among a user's own headers. DESTINATION/tern.h is for who wrote
# #include <tern.h>. The list of the headers is left in tern_headers. A file that is as it should be keeps its time. A header that needs more than
# the C++ standard library is an error, and so is one that includes a header of it that every user would pay for: <filesystem>, <chrono> and
# <cmath> alone would be 0.3 s of each file that includes tern.h (docs/packages.md).
cmake_policy(VERSION 3.25)  # an install script begins with CMake 2's
function(tern_write_header path text)
  set(old "")
  if(EXISTS ${path})
    file(READ ${path} old)
  endif()
  if(NOT old STREQUAL text)
    file(WRITE ${path} "${text}")
  endif()
endfunction()

function(tern_write_headers root destination)
  set(todo tern.h)
  set(done "")
  while(todo)
    list(POP_FRONT todo header)
    list(APPEND done ${header})
    file(READ ${root}/${header} text)
    string(REGEX REPLACE "(^|\n)#include \"([^\"]*)\"" "\\1#include <tern/\\2>" text "${text}")
    if(NOT text MATCHES "#include <tern/version.h>")  # it checks the language before anything else is read
      string(REPLACE "#pragma once\n" "#pragma once\n#include <tern/version.h>\n" text "${text}")
    endif()
    tern_write_header(${destination}/tern/${header} "${text}")
    file(STRINGS ${root}/${header} foreign REGEX "^#include <[^>]*[./]")  # no header of the C++ standard library
    list(FILTER foreign EXCLUDE REGEX "<tern/")
    if(foreign)
      message(FATAL_ERROR "expected public headers to include the C++ standard library alone but got ${header}: ${foreign}")
    endif()
    file(STRINGS ${root}/${header} slow REGEX "^#include <(algorithm|chrono|cmath|filesystem|mutex|random|ranges|thread|variant)>")
    if(slow)
      message(FATAL_ERROR "expected public headers that compile fast but got ${header}: ${slow}")
    endif()
    file(STRINGS ${root}/${header} includes REGEX "^#include \"")
    foreach(line IN LISTS includes)
      string(REGEX REPLACE "^#include \"([^\"]*)\".*" "\\1" included "${line}")
      if(NOT included IN_LIST done AND NOT included IN_LIST todo)
        list(APPEND todo ${included})
      endif()
    endforeach()
  endwhile()
  tern_write_header(${destination}/tern.h "#pragma once\n#include <tern/tern.h>\n")
  set(tern_headers ${done} PARENT_SCOPE)
endfunction()
