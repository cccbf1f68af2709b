// What a round costs: a forward by its rows, a step of the draft head by its sequences, in milliseconds.
#pragma once

#include <array>
#include <span>

namespace flashnext {

// Prices are kept at a few widths and interpolated between them. They start from defaults, are set by timing
// at load, and refined by the rounds that run. A function of what it was told alone: no clock, no threads.
class Prices {
 public:
  static constexpr std::array<int, 7> kWidths = {1, 2, 4, 8, 16, 32, 64};

  Prices();

  // A forward of `rows` rows and all that a round does beside drafting; 0 for none, on the last slope beyond
  // the widest. Never falls with rows.
  double forward_ms(int rows) const { return forward_.at(rows); }
  // One step of the draft head over this many sequences; 0 for none.
  double draft_step_ms(int n_sequences) const { return draft_step_.at(n_sequences); }
  // A round: its rows, and how many sequences each draft step has.
  double round_ms(int rows, std::span<const int> drafting) const;

  // What was timed at one of kWidths. The widths not timed yet keep their shape beside it. Throws
  // InvalidArgument for another width, or a time that is not positive and finite.
  void set_measured(int rows, double ms);
  void set_measured_draft_step(int n_sequences, double ms);

  // What a round took. A round corrects a tenth of an error, and of a large one a few hundredths, so that an
  // outlier on a shared machine hardly counts and a lasting change is followed in tens of rounds. Times that
  // are not positive and finite, and rounds of no rows, are ignored.
  void observe_round(int rows, std::span<const int> drafting, double ms);

 private:
  static constexpr size_t kKnots = kWidths.size();

  // Piecewise linear over kWidths, never falling.
  struct Curve {
    std::array<double, kKnots> ms;
    std::array<bool, kKnots> known = {};  // timed, or seen in rounds; the others move along

    // The knots to both sides of a width and the weight of the upper one.
    struct Place {
      size_t low;
      double upper;
    };
    static Place place(int width);
    double at(int width) const;
    void set(const char* what, int width, double time_ms);
    void scale(double factor);
    bool any_known() const;
    // Adds to `parts` what each knot contributes to the price of a width.
    void add_parts(int width, std::array<double, kKnots>& parts) const;
    // Moves knots by an error of the logarithm, in proportion to their parts.
    void move(const std::array<double, kKnots>& parts, double error);
    // Makes the curve never fall, trusting the knots from `first` to `last`.
    void straighten(size_t first, size_t last);
  };

  Curve forward_, draft_step_;
};

}  // namespace flashnext
