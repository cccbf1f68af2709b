// Foundation, as far as the Metal device uses it, for the simulated Metal: declarations with Apple's names
// and types. What is declared here is all that cpp/device/metal may use; tests/sim_metal/test_api.py compares
// it with Apple's.
#pragma once

#include <objc/objc.h>
#include <stddef.h>
#include <stdint.h>

typedef long NSInteger;
typedef unsigned long NSUInteger;
typedef double CFTimeInterval;

#ifndef YES
#define YES ((BOOL)1)
#define NO ((BOOL)0)
#endif
#undef nil
#ifdef __cplusplus
#define nil nullptr
#else
#define nil ((id)0)
#endif
#define NS_ENUM(type, name) \
  enum name : type;         \
  typedef enum name name;   \
  enum name : type
#define NS_OPTIONS(type, name) \
  typedef type name;           \
  enum : type

@class NSString;

@protocol NSObject
- (id)retain;
- (oneway void)release;
- (id)autorelease;
- (NSUInteger)retainCount;
@end

// Counts its references; what is told to a freed object is an error (objects.mm).
@interface NSObject <NSObject> {
  Class isa;
}
+ (id)alloc;
- (id)init;
- (void)dealloc;
@end

@interface NSAutoreleasePool : NSObject
- (void)drain;
@end

@interface NSString : NSObject
+ (id)stringWithUTF8String:(const char*)bytes;
- (const char*)UTF8String;
- (BOOL)isEqualToString:(NSString*)other;
@end

// What the compiler makes of @"...": its layout is the compiler's.
@interface NSConstantString : NSString {
 @public
  const char* bytes_;
  unsigned int length_;
}
@end

typedef struct {
  unsigned long state;
  id* itemsPtr;
  unsigned long* mutationsPtr;
  unsigned long extra[5];
} NSFastEnumerationState;

@interface NSArray : NSObject
+ (id)arrayWithObjects:(const id*)objects count:(NSUInteger)count;
- (NSUInteger)count;
- (id)objectAtIndex:(NSUInteger)index;
- (NSUInteger)countByEnumeratingWithState:(NSFastEnumerationState*)state
                                  objects:(id*)buffer
                                    count:(NSUInteger)count;
@end

@interface NSDictionary : NSObject
- (id)objectForKey:(id)key;
@end

@interface NSURL : NSObject
+ (id)fileURLWithPath:(NSString*)path;
@end

typedef NSString* NSErrorDomain;
@interface NSError : NSObject
- (NSErrorDomain)domain;
- (NSInteger)code;
- (NSDictionary*)userInfo;
- (NSString*)localizedDescription;
@end

typedef NS_OPTIONS(uint64_t, NSActivityOptions) {
  NSActivityUserInitiated = 0x00ffffff,
};

@interface NSProcessInfo : NSObject
+ (NSProcessInfo*)processInfo;
- (NSString*)operatingSystemVersionString;
- (id<NSObject>)beginActivityWithOptions:(NSActivityOptions)options reason:(NSString*)reason;
- (void)endActivity:(id<NSObject>)activity;
@end
