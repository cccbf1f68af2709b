// Objective-C objects in C++ hands, and their texts.
#pragma once

#import <Foundation/Foundation.h>

#include <string>
#include <utility>

namespace flashnext::mtl {

// One reference to an object, released by the destructor. T is NSString*, id<MTLBuffer>, ...
template <class T>
class Owned {
 public:
  Owned() = default;
  // Takes over the reference that alloc, new... and copy give.
  static Owned adopt(T object) {
    Owned owned;
    owned.object_ = object;
    return owned;
  }
  // A reference of its own to what all other methods give.
  static Owned retain(T object) { return adopt([object retain]); }
  Owned(Owned&& other) noexcept : object_(std::exchange(other.object_, nil)) {}
  Owned& operator=(Owned&& other) noexcept {
    Owned last = std::move(*this);
    object_ = std::exchange(other.object_, nil);
    return *this;
  }
  ~Owned() { [object_ release]; }

  T get() const { return object_; }
  explicit operator bool() const { return object_ != nil; }
  void reset() { *this = Owned(); }

 private:
  T object_ = nil;
};

// A pool for what methods give that nobody owns; unlike @autoreleasepool it is drained when an error passes
// by.
class Pool {
 public:
  Pool() : pool_([[NSAutoreleasePool alloc] init]) {}
  ~Pool() { [pool_ drain]; }
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

 private:
  NSAutoreleasePool* pool_;
};

// Of the pool that is open where it is called.
inline NSString* ns(const std::string& text) { return [NSString stringWithUTF8String:text.c_str()]; }
inline std::string text(NSString* string) { return string ? std::string([string UTF8String]) : ""; }
inline std::string text(NSError* error) {
  return error ? text([error localizedDescription]) : "no reason given";
}

}  // namespace flashnext::mtl
