#pragma once
// Modules and decoding in one include.
#include "nn/attention.h"
#include "nn/convolution.h"
#include "nn/generate.h"
#include "nn/init.h"
#include "nn/layers.h"
#include "nn/low_rank.h"
#include "nn/mixer.h"
#include "nn/module.h"
#include "nn/recurrent.h"
#include "nn/rwkv.h"
#include "nn/state_space.h"
#include "nn/transformer.h"
