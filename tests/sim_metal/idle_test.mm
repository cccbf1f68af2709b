// When an idle device beats and lets the Mac sleep, over times that the claims invent.
#include "device/metal/idle.h"
#include "claims.h"

namespace flashnext::test {
namespace {

using mtl::Idle;
using mtl::Nanoseconds;

Nanoseconds ms(int n) { return std::chrono::milliseconds(n); }

struct Watched {
  int beats = 0;
  bool awake = false;
  mtl::IdleTimes times = {ms(500), ms(3000), ms(1200)};
  Idle idle{times, {[this] { ++beats; }, [this](bool on) { awake = on; }}};
};

CLAIM(beats_come_in_their_time_until_it_is_over) {
  Watched w;
  w.idle.used(ms(0));
  int comes = 0;
  std::optional<Nanoseconds> at = ms(0);
  while ((at = w.idle.poll(*at, false))) ++comes;
  CHECK_EQ(w.beats, 5);  // at 500, 1000, ... 2500
  CHECK(comes <= 8);
}

CLAIM(a_beat_is_not_made_before_its_time) {
  Watched w;
  w.idle.used(ms(100));
  CHECK(w.idle.poll(ms(599), false) == ms(600));
  CHECK_EQ(w.beats, 0);
  CHECK(w.idle.poll(ms(600), false) == ms(1100));
  CHECK_EQ(w.beats, 1);
}

CLAIM(use_begins_the_time_anew) {
  Watched w;
  w.idle.used(ms(0));
  w.idle.poll(ms(500), false);
  w.idle.used(ms(900));
  CHECK(w.idle.poll(ms(1000), false) == ms(1400));
  CHECK_EQ(w.beats, 1);
  CHECK(w.idle.poll(ms(3899), false).has_value());
  CHECK(!w.idle.poll(ms(3900), false).has_value());
}

CLAIM(while_work_is_in_flight_it_is_not_idle) {
  Watched w;
  w.idle.used(ms(0));
  CHECK(w.idle.poll(ms(10'000), true) == ms(10'500));
  CHECK(w.awake);
  CHECK_EQ(w.beats, 0);
}

CLAIM(the_mac_may_sleep_some_time_behind_the_last_work) {
  Watched w;
  CHECK(!w.awake);
  w.idle.used(ms(0));
  CHECK(w.awake);
  w.idle.poll(ms(1199), false);
  CHECK(w.awake);
  w.idle.poll(ms(1200), false);
  CHECK(!w.awake);
  w.idle.used(ms(5000));
  CHECK(w.awake);
}

CLAIM(who_goes_lets_the_mac_sleep) {
  bool awake = false;
  {
    Idle idle({}, {[] {}, [&](bool on) { awake = on; }});
    idle.used(ms(0));
    CHECK(awake);
  }
  CHECK(!awake);
}

}  // namespace
}  // namespace flashnext::test
