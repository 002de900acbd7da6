#pragma once
// Names of the C headers that nvcc includes in every file, for a user's own: NVRTC gets this before it. 64 bits are as in the toolkit's
// headers, which a file may include.
#include "compile/device/integers.h"
#define INFINITY __int_as_float(0x7f800000)
#define NAN __int_as_float(0x7fffffff)
#define FLT_MAX 3.402823466e+38f
#define FLT_MIN 1.175494351e-38f
#define FLT_EPSILON 1.192092896e-07f
typedef long long int64_t;
typedef unsigned long long uint64_t;
