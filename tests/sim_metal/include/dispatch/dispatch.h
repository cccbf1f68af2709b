// Grand Central Dispatch, as far as the Metal device uses it: the source that tells of memory pressure.
#pragma once

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct dispatch_source_s* dispatch_source_t;
typedef struct dispatch_queue_s* dispatch_queue_t;
typedef const struct dispatch_source_type_s* dispatch_source_type_t;
typedef void (^dispatch_block_t)(void);

extern const struct dispatch_source_type_s _dispatch_source_type_memorypressure;
#define DISPATCH_SOURCE_TYPE_MEMORYPRESSURE (&_dispatch_source_type_memorypressure)
#define DISPATCH_MEMORYPRESSURE_NORMAL 0x01
#define DISPATCH_MEMORYPRESSURE_WARN 0x02
#define DISPATCH_MEMORYPRESSURE_CRITICAL 0x04
#define QOS_CLASS_UTILITY 0x11

dispatch_queue_t dispatch_get_global_queue(long identifier, unsigned long flags);
dispatch_source_t dispatch_source_create(dispatch_source_type_t type, uintptr_t handle, unsigned long mask,
                                         dispatch_queue_t queue);
void dispatch_source_set_event_handler(dispatch_source_t source, dispatch_block_t handler);
unsigned long dispatch_source_get_data(dispatch_source_t source);
void dispatch_activate(dispatch_source_t object);
void dispatch_source_cancel(dispatch_source_t source);
void dispatch_release(dispatch_source_t object);

#ifdef __cplusplus
}
#endif
