// What the simulated classes hold, where others of them look inside.
#pragma once

#import <Foundation/Foundation.h>

#include <string>
#include <vector>

@interface SimList : NSArray {
 @public
  std::vector<id>* items_;
}
@end

@interface SimPair : NSDictionary {
 @public
  NSString* key_;
  id value_;
}
@end

@interface SimUrl : NSURL {
 @public
  std::string* path_;
}
@end

@interface SimError : NSError {
 @public
  NSErrorDomain domain_;
  NSInteger code_;
  std::string* words_;
  NSDictionary* info_;
}
@end

namespace sim {

// Autoreleased.
NSError* error(NSErrorDomain domain, NSInteger code, const std::string& words, NSDictionary* info = nil);

}  // namespace sim
