include(/work/wt-pages/cmake/install_headers.cmake)
tern_write_headers(/work/wt-pages/src /work/scratch/pages/rd/hdr)
