// flashnext._core.testing: prices, acceptance and the allocation of drafts.
#include <nanobind/nanobind.h>
#include <nanobind/stl/array.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/vector.h>

#include <vector>

#include "bindings/errors.h"
#include "rounds/allocate.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace flashnext {

void bind_testing_rounds(nb::module_& m) {
  nb::enum_<DraftSource>(m, "DraftSource", "Where drafts come from.")
      .value("HEAD", DraftSource::kHead)
      .value("COPY", DraftSource::kCopy);

  nb::class_<Prices>(m, "Prices", "What a round costs, in milliseconds; see cpp/rounds/prices.h.")
      .def(nb::init<>())
      .def("forward_ms", &Prices::forward_ms, "rows"_a)
      .def("draft_step_ms", &Prices::draft_step_ms, "n_sequences"_a)
      .def(
          "round_ms",
          [](const Prices& p, int rows, const std::vector<int>& drafting) {
            return p.round_ms(rows, drafting);
          },
          "rows"_a, "drafting"_a = std::vector<int>(), "drafting: sequences of each draft step.")
      .def("set_measured", &Prices::set_measured, "rows"_a, "ms"_a)
      .def("set_measured_draft_step", &Prices::set_measured_draft_step, "n_sequences"_a, "ms"_a)
      .def(
          "observe_round",
          [](Prices& p, int rows, const std::vector<int>& drafting, double ms) {
            p.observe_round(rows, drafting, ms);
          },
          "rows"_a, "drafting"_a, "ms"_a);
  m.attr("PRICE_WIDTHS") = nb::cast(Prices::kWidths);

  nb::class_<Acceptance>(m, "Acceptance", "How often drafts are kept; see cpp/rounds/acceptance.h.")
      .def(nb::init<>())
      .def_static("of_all", &Acceptance::of_all)
      .def("observe", &Acceptance::observe, "source"_a, "proposed"_a, "accepted"_a)
      .def("due", &Acceptance::due, "source"_a)
      .def("rates", nb::overload_cast<DraftSource, const Acceptance&>(&Acceptance::rates, nb::const_),
           "source"_a, "all"_a)
      .def("rates", nb::overload_cast<DraftSource>(&Acceptance::rates, nb::const_), "source"_a);

  nb::class_<Candidate>(m, "Candidate", "A sequence that may get drafts.")
      .def(
          "__init__",
          [](Candidate* self, const KeptRates& head, const KeptRates& copy, int most_head, int most_copied,
             bool probe_head, bool probe_copy) {
            new (self) Candidate{head, copy, most_head, most_copied, probe_head, probe_copy};
          },
          "head"_a = KeptRates(), "copy"_a = KeptRates(), "most_head"_a = 0, "most_copied"_a = 0,
          "probe_head"_a = false, "probe_copy"_a = false)
      .def_static("of", &Candidate::of, "own"_a, "all"_a, "most_head"_a, "most_copied"_a);

  m.def(
      "allocate",
      [](const std::vector<Candidate>& candidates, const Prices& prices, int row_limit) {
        std::vector<Allotment> out(candidates.size());
        allocate(candidates, prices, row_limit, out);
        std::vector<std::pair<int, DraftSource>> drafts;
        for (const Allotment& a : out) drafts.emplace_back(a.n_drafts, a.source);
        return drafts;
      },
      "candidates"_a, "prices"_a, "row_limit"_a, "Drafts and their source of each candidate.");
}

}  // namespace flashnext
