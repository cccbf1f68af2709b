// sim_metal_claims FOLDER [NAME...]: runs all claims, or those named; FOLDER is for what they write.
// sim_metal_claims --list: their names.
#include "claims.h"

#include <chrono>
#include <cstring>
#include <filesystem>
#include <map>
#include <thread>

namespace flashnext::test {
namespace {

struct Listed {
  const char* name;
  void (*run)();
};
std::vector<Listed>& all() {
  static std::vector<Listed> claims;
  return claims;
}

std::filesystem::path program, folder;

}  // namespace

Claim::Claim(const char* name, void (*run)()) { all().push_back({name, run}); }

std::string kernels_folder() { return program.parent_path().string(); }

std::string empty_folder() { return (folder / "claim").string(); }

DeviceRef open_metal(mtl::IdleTimes idle, const std::string& cache) {
  return mtl::open_device({{"copy_rows_f32", 256, 1, 4}, {"copy_drafts", 256, 1, 4}},
                          {kernels_folder(), cache, idle});
}

void require_noted(const std::string& words, const char* file, int line) {
  std::string found;
  for (const std::string& what : sim::take_misuses()) {
    if (what.find(words) != std::string::npos) return;
    found += "; " + what;
  }
  fail(file, line, "nothing says '" + words + "'" + found);
}

static void run(const Listed& claim) {
  std::printf("%s\n", claim.name);
  std::fflush(stdout);
  std::filesystem::remove_all(empty_folder());
  std::filesystem::create_directories(empty_folder());
  sim::set(sim::Settings());
  claim.run();
  // A queue's thread lets go of its last command buffer behind the claim.
  for (int i = 0; i < 10'000 && !sim::live_objects().empty(); ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  for (const std::string& what : sim::take_misuses()) fail(claim.name, 0, "noted: " + what);
  for (const auto& [name, n] : sim::live_objects()) {
    fail(claim.name, 0, std::to_string(n) + " of " + name + " are never freed");
  }
  for (const char* what : {"activity", "source", "residency set"}) {
    if (sim::count(what) != 0) fail(claim.name, 0, std::string("left over: ") + what);
  }
}

static int main(int argc, char** argv) {
  program = argv[0];
  if (argc > 1 && std::strcmp(argv[1], "--list") == 0) {
    for (const Listed& claim : all()) std::printf("%s\n", claim.name);
    return 0;
  }
  folder = argc > 1 ? argv[1] : ".";
  int n = 0;
  for (const Listed& claim : all()) {
    bool wanted = argc < 3;
    for (int i = 2; i < argc; ++i) wanted |= std::strcmp(argv[i], claim.name) == 0;
    if (wanted) ++n, run(claim);
  }
  return n > 0 ? 0 : 1;
}

}  // namespace flashnext::test

int main(int argc, char** argv) { return flashnext::test::main(argc, argv); }
