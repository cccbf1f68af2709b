// The type of a kernel's I-th parameter, for every flavour.
#pragma once

namespace msl {

template <int I, class F>
struct Argument;
template <class R, class A, class... As>
struct Argument<0, R (*)(A, As...)> {
  using type = A;
};
template <int I, class R, class A, class... As>
struct Argument<I, R (*)(A, As...)> : Argument<I - 1, R (*)(As...)> {};
template <int I, class F>
using argument = typename Argument<I, F>::type;

}  // namespace msl
