// The parts of flashnext._core.testing that have files of their own.
#pragma once

#include <nanobind/nanobind.h>

namespace flashnext {

void bind_testing_cuda(nanobind::module_& m);
void bind_testing_sampler(nanobind::module_& m);

}  // namespace flashnext
