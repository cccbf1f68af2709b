// flashnext._core.Driver: rounds that go on by themselves, for the engine's thread.
#include "rounds/driver.h"

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>

#include "base/error.h"
#include "bindings/errors.h"
#include "bindings/media.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace flashnext {
namespace {

using Tokens = nb::ndarray<const int32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
// session, tokens, last, scored, marks, media
using Chunk = std::tuple<SessionRef, Tokens, bool, Tokens, std::vector<int32_t>, std::vector<ShownTuple>>;

using Words = nb::ndarray<const uint32_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

// Asks Python for masks; called without the interpreter's lock, by the driver's thread or the engine's.
WriteMasks masks_of(const nb::object& ask) {
  if (ask.is_none()) return {};
  // The driver owns what is asked, and is not gone before its passes have landed.
  return [ask = ask.ptr()](int64_t grammar, std::span<const int32_t> drawn, std::span<const int32_t> drafts,
                           std::span<uint32_t> masks) {
    const nb::gil_scoped_acquire acquire;
    const auto list = [](std::span<const int32_t> ids) {
      return nb::cast(std::vector<int32_t>(ids.begin(), ids.end()));
    };
    try {
      const auto words = nb::cast<Words>(nb::handle(ask)(grammar, list(drawn), list(drafts)));
      if (words.size() != masks.size()) throw Error("grammar: masks of another size were given");
      std::copy_n(words.data(), words.size(), masks.begin());
    } catch (nb::python_error& error) {  // must not leave with the lock free
      error.discard_as_unraisable("the masks of a grammar");
      throw Error("grammar: its masks could not be computed");
    } catch (const nb::cast_error&) {
      throw Error("grammar: its masks are not uint32");
    }
  };
}

// Its passes may wait for the interpreter's lock, so they are waited for without it.
class PyDriver final : public Driver {
 public:
  PyDriver(const std::shared_ptr<Model>& model, int n_valid, const DriverOptions& options, nb::object masks)
      : Driver(model, n_valid, options, masks_of(masks)), masks_(std::move(masks)) {}
  ~PyDriver() {
    const nb::gil_scoped_release release;
    stop();
  }

 private:
  nb::object masks_;
};

}  // namespace

void bind_driver(nb::module_& m) {
  nb::class_<LandedPart>(m, "Landed",
                         "What one session got out of a round, or out of its part of a prompt pass.")
      .def_ro("session", &LandedPart::session)
      .def_ro("tokens", &LandedPart::tokens, "Drawn, in the order of the reply.")
      .def_ro("scores", &LandedPart::scores, "Of the chunk's scored tokens, in their order.")
      .def_ro("snapshots", &LandedPart::snapshots,
              "Of the chunk's marks, in their order; None where there was no memory for one.",
              nb::for_getter(nb::sig("def snapshots(self, /) -> list[Snapshot | None]")))
      .def_ro("ended", &LandedPart::ended, "A stop id, the end or NaN was seen: it has no rounds any more.")
      .def_ro("proposed", &LandedPart::proposed, "Drafts that were verified.")
      .def_ro("accepted", &LandedPart::accepted, "Those of them that were kept.")
      .def_ro("copied", &LandedPart::copied, "They were copied from the reply's own text.")
      .def_ro("short", &LandedPart::short_of_pages, "There was no page for it; nothing of it ran.")
      .def_prop_ro(
          "error",
          [](const LandedPart& p) {
            return p.short_of_pages ? nb::object(nb::none()) : python_error(p.error);
          },
          nb::sig("def error(self) -> Exception | None"),
          "What failed of this session; it can only be closed.");

  nb::class_<PyDriver>(m, "Driver",
                       "Runs prompt passes and rounds; a thread of its own commits rounds while the set that "
                       "runs stays the same.")
      .def(
          "__init__",
          [](PyDriver* self, const std::shared_ptr<Model>& model, int n_valid, int row_limit, bool lone,
             bool prices, bool serial_drafts, nb::object masks) {
            new (self) PyDriver(model, n_valid > 0 ? n_valid : model->config().vocab_size,
                                {row_limit, lone, prices, serial_drafts}, std::move(masks));
          },
          "model"_a, "n_valid"_a = 0, "row_limit"_a = 32, "lone"_a = true, "prices"_a = true,
          "serial_drafts"_a = false, "masks"_a.none() = nb::none(),
          "masks: of replies with grammars, called with (number of the grammar, tokens that were drawn since "
          "the last call, drafts behind them) by whichever thread runs passes; gives uint32 [1 + drafts, "
          "ceil(n_valid / 32)], of which bit i % 32 of word i / 32 allows id i behind the drawn tokens, and "
          "behind each draft. A row without any ends the reply, and so does an exception.")
      .def_prop_ro("max_chunk", [](PyDriver& d) { return d.runner().max_chunk(); })
      .def_prop_ro("max_sequences", [](PyDriver& d) { return d.runner().model().options().max_sequences; })
      .def(
          "begin",
          [](PyDriver& d, Session& session, const Sampling& sampling, std::vector<int32_t> stop_ids,
             int n_prompt, int end, std::vector<int32_t> known, int most_head, int most_copied,
             int64_t grammar) {
            d.runner().begin(session, {sampling,
                                       std::move(stop_ids),
                                       n_prompt,
                                       end,
                                       std::move(known),
                                       {most_head, most_copied},
                                       grammar});
          },
          "session"_a, "sampling"_a, "stop_ids"_a, "n_prompt"_a, "end"_a, "known"_a = std::vector<int32_t>(),
          "most_head"_a = 0, "most_copied"_a = 0, "grammar"_a = 0,
          "Say how the reply is drawn, before the chunk that reads the last token of the prompt. end: "
          "positions of prompt and reply together. known: tokens of the reply that rounds are fed with and "
          "draw again. most_head, most_copied: drafts of a round by the draft head, or copied from the text. "
          "grammar: a number that masks() knows; 0 for none.")
      .def("start", &PyDriver::start, "sessions"_a, nb::call_guard<nb::gil_scoped_release>(),
           "Rounds over these sessions from now on, in place of others.")
      .def("take", &PyDriver::take, nb::call_guard<nb::gil_scoped_release>(),
           "Wait until something has landed, no round can follow, or wake() was called.")
      .def("stop", &PyDriver::stop, nb::call_guard<nb::gil_scoped_release>(),
           "Commit no more rounds, and wait for those in flight.")
      .def(
          "step",
          [](PyDriver& d, const std::vector<Chunk>& chunks, const std::vector<SessionRef>& sessions) {
            std::vector<ChunkPart> parts;
            const auto ids = [](const Tokens& t) {
              return std::vector<int32_t>(t.data(), t.data() + t.size());
            };
            for (const auto& [session, tokens, last, scored, marks, media] : chunks) {
              parts.push_back({session, ids(tokens), last, ids(scored), {}, marks, shown_of(media)});
            }
            const nb::gil_scoped_release release;
            return d.step(std::move(parts), sessions);
          },
          "chunks"_a, "sessions"_a,
          "Stop, then read [(session, tokens, last, scored, marks, media), ...] and run one round of the "
          "sessions. "
          "scored: tokens behind the first of them whose log-probabilities are wanted; begin() comes first "
          "then. marks: numbers of tokens behind which snapshots are taken, ascending. media: (first row, "
          "features, first of them, how many) of the rows that show some.")
      .def("snapshot", &PyDriver::snapshot, "session"_a, nb::call_guard<nb::gil_scoped_release>(),
           "Settle a session that has nothing in flight, and take a snapshot of where it stands.")
      // With the interpreter's lock: whoever is woken would take it from a caller that has more to do.
      .def("wake", &PyDriver::wake, "Let take() return soon; from any thread.")
      .def("time_a_price", &PyDriver::time_a_price, "pool"_a, nb::call_guard<nb::gil_scoped_release>(),
           "With nothing to do: time what one width of rounds costs; whether there is more to time.")
      .def(
          "prices",
          [](const PyDriver& d, const std::vector<int>& widths) {
            const Prices prices = d.prices();
            std::vector<std::pair<double, double>> out;
            for (const int w : widths) out.emplace_back(prices.forward_ms(w), prices.draft_step_ms(w));
            return out;
          },
          "widths"_a, nb::call_guard<nb::gil_scoped_release>(),
          "Milliseconds of (a forward of w rows, a draft step of w sequences), for each w.")
      .def(
          "counts",
          [](const PyDriver& d) {
            const DriverCounts c = d.counts();
            return std::map<std::string, uint64_t>{{"rounds", c.rounds},
                                                   {"shared_rounds", c.shared_rounds},
                                                   {"lone_rounds", c.lone_rounds},
                                                   {"to_shared", c.to_shared},
                                                   {"to_lone", c.to_lone},
                                                   {"chunks", c.chunks},
                                                   {"chunks_beside_rounds", c.chunks_beside_rounds},
                                                   {"rows", c.rows},
                                                   {"widest", c.widest},
                                                   {"proposed", c.proposed},
                                                   {"accepted", c.accepted},
                                                   {"copies_proposed", c.copies_proposed},
                                                   {"copies_accepted", c.copies_accepted}};
          },
          nb::call_guard<nb::gil_scoped_release>(), "How often its mechanisms ran since it was made.")
      .def(
          "keep_hashes", [](PyDriver& d, bool keep) { d.runner().keep_hashes(keep); }, "keep"_a,
          "Tests: whether tokens carry a hash of the logits that they were drawn from.")
      .def(
          "state_hash",
          [](PyDriver& d, Session& session) {
            const nb::gil_scoped_release release;
            d.stop();
            d.runner().settle(session);
            return session.state_hash();
          },
          "session"_a, "Tests: stop, settle, then hash the session's state as Runner.state_hash does.");
}

}  // namespace flashnext
