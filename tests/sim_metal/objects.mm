// Objects that count their references, and the few classes of Foundation.
#import <Foundation/Foundation.h>
#include <objc/message.h>
#include <objc/runtime.h>
#include <unistd.h>
#include <unwind.h>

#include <atomic>
#include <cstring>
#include <deque>
#include <set>

#include "objects.h"
#include "simulated.h"

// GCC's runtime looks for handlers of Objective-C's errors only, and the compiler asks it about C++'s too.
extern "C" _Unwind_Reason_Code __gxx_personality_v0(int, _Unwind_Action, _Unwind_Exception_Class,
                                                    _Unwind_Exception*, _Unwind_Context*);
extern "C" __attribute__((visibility("hidden"))) _Unwind_Reason_Code
__gnu_objc_personality_v0(int version, _Unwind_Action actions, _Unwind_Exception_Class kind,
                          _Unwind_Exception* exception, _Unwind_Context* context) {
  return __gxx_personality_v0(version, actions, kind, exception, context);
}

namespace sim {
namespace {

struct Objects {
  std::mutex mutex;
  std::map<id, std::string> live;
  std::map<id, std::string> freed;  // while their memory is kept, so that who still holds one is found
  std::deque<id> order;
};
Objects& objects() {
  static Objects* all = new Objects;  // outlives every object
  return *all;
}
constexpr size_t kKept = 20'000;

// The count lies behind an object's own fields.
std::atomic<int>& references(id object) {
  char* end = reinterpret_cast<char*>(object) + class_getInstanceSize(object_getClass(object));
  return *reinterpret_cast<std::atomic<int>*>(end);
}

id unknown_message(id object, SEL selector, ...) {
  const std::string name = sel_getName(selector);
  {
    const std::lock_guard lock(objects().mutex);
    const auto found = objects().freed.find(object);
    if (found != objects().freed.end()) {
      const std::string who = found->second;
      misuse("a freed " + who + " is told to " + name);
    }
  }
  misuse(std::string(object_getClassName(object)) + " does not know " + name);
}

IMP forward(id, SEL) { return reinterpret_cast<IMP>(unknown_message); }

struct Hook {
  Hook() { __objc_msg_forward2 = forward; }
} hook;

thread_local std::vector<std::vector<id>> pools;

}  // namespace

std::map<std::string, int> live_objects() {
  const std::lock_guard lock(objects().mutex);
  std::map<std::string, int> n;
  for (const auto& [object, name] : objects().live) ++n[name];
  return n;
}

bool is_live(id object) {
  const std::lock_guard lock(objects().mutex);
  return objects().live.contains(object);
}

}  // namespace sim

// What a freed object becomes: it knows nothing.
__attribute__((objc_root_class))
@interface SimFreed {
  Class isa;
}
@end
@implementation SimFreed
@end

@implementation NSObject
+ (id)alloc {
  constexpr size_t kRoom = 8;
  id object = class_createInstance(self, kRoom);
  sim::references(object) = 1;
  const std::lock_guard lock(sim::objects().mutex);
  sim::objects().live[object] = class_getName(self);
  sim::objects().freed.erase(object);
  return object;
}
+ (void)initialize {
}
- (id)init {
  return self;
}
- (id)retain {
  ++sim::references(self);
  return self;
}
- (oneway void)release {
  if (--sim::references(self) == 0) [self dealloc];
}
- (id)autorelease {
  if (sim::pools.empty())
    sim::misuse(std::string("an autoreleased ") + object_getClassName(self) + " has no pool");
  sim::pools.back().push_back(self);
  return self;
}
- (NSUInteger)retainCount {
  return static_cast<NSUInteger>(sim::references(self).load());
}
- (void)dealloc {
  sim::Objects& all = sim::objects();
  const std::lock_guard lock(all.mutex);
  all.freed[self] = all.live[self];
  all.live.erase(self);
  object_setClass(self, objc_getClass("SimFreed"));
  all.order.push_back(self);
  if (all.order.size() > sim::kKept) {
    all.freed.erase(all.order.front());
    object_dispose(all.order.front());
    all.order.pop_front();
  }
}
@end

@implementation NSAutoreleasePool
- (id)init {
  sim::pools.emplace_back();
  return self;
}
- (void)drain {
  if (sim::pools.empty()) sim::misuse("a pool is drained on another thread");
  const std::vector<id> objects = std::move(sim::pools.back());
  sim::pools.pop_back();
  for (id object : objects) [object release];
  [self release];
}
@end

@interface SimString : NSString {
 @public
  std::string* text_;
}
@end

@implementation SimString
- (const char*)UTF8String {
  return text_->c_str();
}
- (void)dealloc {
  delete text_;
  [super dealloc];
}
@end

@implementation NSString
+ (id)stringWithUTF8String:(const char*)bytes {
  SimString* string = [[[SimString alloc] init] autorelease];
  string->text_ = new std::string(bytes);
  return string;
}
- (const char*)UTF8String {
  return "";
}
- (BOOL)isEqualToString:(NSString*)other {
  return other && std::strcmp([self UTF8String], [other UTF8String]) == 0;
}
@end

@implementation NSConstantString
- (const char*)UTF8String {
  return bytes_;
}
- (id)retain {
  return self;
}
- (oneway void)release {
}
- (id)autorelease {
  return self;
}
@end

@implementation SimList
- (id)init {
  items_ = new std::vector<id>;
  return self;
}
- (void)dealloc {
  for (id item : *items_) [item release];
  delete items_;
  [super dealloc];
}
- (NSUInteger)count {
  return items_->size();
}
- (id)objectAtIndex:(NSUInteger)index {
  return items_->at(index);
}
- (NSUInteger)countByEnumeratingWithState:(NSFastEnumerationState*)state
                                  objects:(id*)buffer
                                    count:(NSUInteger)count {
  (void)buffer, (void)count;
  static unsigned long none = 0;
  if (state->state++) return 0;
  state->itemsPtr = items_->data();
  state->mutationsPtr = &none;
  return items_->size();
}
@end

@implementation NSArray
+ (id)arrayWithObjects:(const id*)objects count:(NSUInteger)count {
  SimList* list = [[[SimList alloc] init] autorelease];
  for (NSUInteger i = 0; i < count; ++i) list->items_->push_back([objects[i] retain]);
  return list;
}
- (NSUInteger)count {
  return 0;
}
- (id)objectAtIndex:(NSUInteger)index {
  (void)index;
  return nil;
}
- (NSUInteger)countByEnumeratingWithState:(NSFastEnumerationState*)state
                                  objects:(id*)buffer
                                    count:(NSUInteger)count {
  (void)state, (void)buffer, (void)count;
  return 0;
}
@end

@implementation SimPair
- (id)objectForKey:(id)key {
  return [key isEqualToString:key_] ? value_ : nil;
}
- (void)dealloc {
  [value_ release];
  [super dealloc];
}
@end

@implementation NSDictionary
- (id)objectForKey:(id)key {
  (void)key;
  return nil;
}
@end

@implementation SimUrl
- (void)dealloc {
  delete path_;
  [super dealloc];
}
@end

@implementation NSURL
+ (id)fileURLWithPath:(NSString*)path {
  SimUrl* url = [[[SimUrl alloc] init] autorelease];
  url->path_ = new std::string([path UTF8String]);
  return url;
}
@end

@implementation SimError
- (NSErrorDomain)domain {
  return domain_;
}
- (NSInteger)code {
  return code_;
}
- (NSDictionary*)userInfo {
  return info_;
}
- (NSString*)localizedDescription {
  return [NSString stringWithUTF8String:words_->c_str()];
}
- (void)dealloc {
  delete words_;
  [info_ release];
  [super dealloc];
}
@end

@implementation NSError
- (NSErrorDomain)domain {
  return nil;
}
- (NSInteger)code {
  return 0;
}
- (NSDictionary*)userInfo {
  return nil;
}
- (NSString*)localizedDescription {
  return nil;
}
@end

namespace sim {

NSError* error(NSErrorDomain domain, NSInteger code, const std::string& words, NSDictionary* info) {
  SimError* made = [[[SimError alloc] init] autorelease];
  made->domain_ = domain;
  made->code_ = code;
  made->words_ = new std::string(words);
  made->info_ = [info retain];
  return made;
}

}  // namespace sim
