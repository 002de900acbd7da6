#pragma once
// Optimizers, schedules, gradient scaling, precision and captured steps in one include.
#include "train/captured_step.h"
#include "train/grad_scale.h"
#include "train/optimizer.h"
#include "train/precision.h"
#include "train/schedule.h"
