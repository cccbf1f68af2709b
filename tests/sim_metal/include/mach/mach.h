// Mach, as far as the Metal device uses it: what is held against a process.
#pragma once

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef int kern_return_t;
typedef unsigned int mach_port_t;
typedef unsigned int mach_msg_type_number_t;
typedef int* task_info_t;
// Apple's has more fields before and behind; the device reads this one.
typedef struct {
  uint64_t phys_footprint;
} task_vm_info_data_t;

#define KERN_SUCCESS 0
#define TASK_VM_INFO 22
#define TASK_VM_INFO_COUNT ((mach_msg_type_number_t)(sizeof(task_vm_info_data_t) / sizeof(int)))

mach_port_t mach_task_self(void);
kern_return_t task_info(mach_port_t task, unsigned int flavor, task_info_t info,
                        mach_msg_type_number_t* count);

#ifdef __cplusplus
}
#endif
