#pragma once
// Optimizers, schedules, clipping, loss scaling, averages, precision, and the training step in one include.
#include "train/ema.h"
#include "train/optimizer.h"
#include "train/precision.h"
#include "train/schedule.h"
#include "train/step.h"
