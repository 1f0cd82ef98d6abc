/*
 * The calls of SNIA's Computational Storage API on drives that have NVMe's memory namespaces
 * (Subsystem Local Memory) and compute namespaces (Computational Programs). They use Linux's
 * driver alone, on little-endian hosts: this file and the kernel's headers are all that is needed.
 * Include it in one source file; it keeps its state there.
 *
 * Names, orders of arguments and meanings are those of the API's public drafts and of their public
 * implementations; where these differ, those closest to version 1.0. Structures are not packed, so
 * compile applications against this file.
 *
 *     CSx        a drive, by its controller: /dev/nvme0
 *     FDM        its first memory namespace; allocations begin at multiples of 4096 bytes and have
 *                whole units of 4096 bytes, which belong to the process that has opened the drive
 *     CSF        a program of its first compute namespace that is activated: its index as text
 *                ("12"), or a name of a device-defined program of Potash ("CRC32C")
 *     arguments  memory becomes memory ranges, in order, from the byte offset to the end of the
 *                allocation; up to two values become CPARAM1 and CPARAM2, in order
 *
 * Requests are synchronous. One with a callback calls it before the function returns CS_QUEUED; a
 * request that is refused returns why, without a call. Events, streams, files, memory that is
 * mapped, abort and parallel batches are not supported. Device memory has no process as its owner
 * in NVMe: a second csOpenCSx of a drive is refused, but other software is not kept from it.
 * Linux names a drive's namespaces after its subsystem; its number has to be the controller's.
 */
#ifndef POTASH_CS_H
#define POTASH_CS_H

#ifndef _DEFAULT_SOURCE
#define _DEFAULT_SOURCE /* for -std=c11: include this file before others then */
#endif

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <linux/nvme_ioctl.h>

typedef uint8_t u8;
typedef uint16_t u16;
typedef uint32_t u32;
typedef int32_t s32;
typedef uint64_t u64;

typedef s32 CS_DEV_HANDLE;
typedef u64 CS_MEM_HANDLE;
typedef void *CS_MEM_PTR;
typedef u32 CS_CSF_ID;
typedef void *CS_EVT_HANDLE;
typedef void *CS_REQ_HANDLE;
typedef u64 CS_STREAM_HANDLE;
typedef struct potash_cs_batch *CS_BATCH_HANDLE;
typedef unsigned int CS_BATCH_INDEX;

typedef enum {
	CS_SUCCESS, CS_COULD_NOT_MAP_MEMORY, CS_DEVICE_ERROR, CS_DEVICE_NOT_AVAILABLE,
	CS_DEVICE_NOT_READY, CS_DEVICE_NOT_PRESENT, CS_ENODEV, CS_ENTITY_NOT_ON_DEVICE, CS_ENXIO,
	CS_ERROR_IN_EXECUTION, CS_FATAL_ERROR, CS_HANDLE_IN_USE, CS_INVALID_HANDLE, CS_INVALID_ARG,
	CS_INVALID_EVENT, CS_INVALID_ID, CS_INVALID_LENGTH, CS_INVALID_OPTION, CS_INVALID_FUNCTION,
	CS_INVALID_FUNCTION_NAME, CS_IO_TIMEOUT, CS_LOAD_ERROR, CS_MEMORY_IN_USE,
	CS_NO_PERMISSIONS, CS_NOT_DONE, CS_NOT_ENOUGH_MEMORY, CS_NO_SUCH_ENTITY_EXISTS,
	CS_OUT_OF_RESOURCES, CS_QUEUED, CS_UNKNOWN_MEMORY, CS_UNKNOWN_COMPUTE_FUNCTION,
	CS_UNSUPPORTED
} CS_STATUS;

typedef enum { CS_COPY_TO_DEVICE = 1, CS_COPY_FROM_DEVICE } CS_MEM_COPY_TYPE;
typedef enum { CS_STORAGE_BLOCK_IO = 1, CS_STORAGE_FILE_IO } CS_STORAGE_REQ_MODE;
typedef enum { CS_STORAGE_LOAD_TYPE = 1, CS_STORAGE_STORE_TYPE } CS_STORAGE_IO_TYPE;
typedef enum {
	CS_AFDM_TYPE = 1, CS_32BIT_VALUE_TYPE, CS_64BIT_VALUE_TYPE, CS_STREAM_TYPE,
	CS_DESCRIPTOR_TYPE
} CS_COMPUTE_ARG_TYPE;
typedef enum { CS_BATCH_SERIAL = 1, CS_BATCH_PARALLEL, CS_BATCH_HYBRID } CS_BATCH_MODE;
typedef enum { CS_COPY_AFDM = 1, CS_STORAGE_IO, CS_QUEUE_COMPUTE } CS_BATCH_REQ_TYPE;
typedef enum { CS_FDM_CLEAR = 1, CS_FDM_FILL } CS_FDM_FLAG_TYPE;

typedef struct {
	u32 FDMId; /* of csGetCSFId, or 0 */
	CS_FDM_FLAG_TYPE Flags;
	u32 FillValue;
} CsMemFlags;

typedef struct {
	u64 DeviceManaged : 1, HostVisible : 1, ClearContentsSupported : 1;
	u64 InvalidateContentSupported : 1, Reserved : 60;
} FDMFlags;

typedef struct {
	u32 FDMId;
	u8 RelativePerformance, RelativePower; /* 0: not defined */
	FDMFlags Flags;
} FDMAccess;

typedef struct {
	CS_CSF_ID CSFId;
	u8 RelativePerformance, Count, NumFDMs;
	FDMAccess *FDMList; /* valid until csCloseCSx */
} CSFIdInfo;

typedef struct {
	CS_MEM_HANDLE MemHandle;
	unsigned long ByteOffset;
} CsDevAFDM;

typedef struct {
	u32 NamespaceId;
	u64 StartLba;
	u32 NumBlocks;
} CsBlockRange;

typedef struct {
	CS_STORAGE_IO_TYPE Type;
	u32 StorageIndex; /* 0: the drive is no array */
	CsDevAFDM DevMem;
	int NumRanges;
	CsBlockRange Range[1]; /* and those that follow */
} CsBlockIo;

typedef struct {
	CS_STORAGE_IO_TYPE Type;
	void *FileHandle;
	u64 Offset;
	u32 Bytes;
	CsDevAFDM DevMem;
} CsFileIo;

typedef struct {
	CS_STORAGE_REQ_MODE Mode;
	CS_DEV_HANDLE DevHandle;
	union {
		CsBlockIo BlockIo;
		CsFileIo FileIo;
	} u;
} CsStorageRequest;

typedef struct {
	CS_MEM_COPY_TYPE Type;
	void *HostVAddress;
	CsDevAFDM DevMem;
	unsigned int Bytes;
} CsCopyMemRequest;

typedef struct {
	CS_COMPUTE_ARG_TYPE Type;
	union {
		CsDevAFDM DevMem;
		u64 Value64;
		u32 Value32;
		CS_STREAM_HANDLE StreamHandle;
	} u;
} CsComputeArg;

typedef struct {
	union {
		CS_CSF_ID CSFId;
		CS_CSF_ID FunctionId; /* its name in earlier drafts */
	};
	int NumArgs;
	CsComputeArg Args[1]; /* and those that follow */
} CsComputeRequest;

typedef struct {
	CS_BATCH_REQ_TYPE ReqType;
	u32 reqLength; /* ignored: a request has the counts of its parts */
	union {
		CsCopyMemRequest CopyMem;
		CsStorageRequest StorageIo;
		CsComputeRequest Compute;
	} u;
} CsBatchRequest;

typedef void (*csQueueCallbackFn)(void *QueueContext, CS_STATUS Status, u64 CompValue);

/* What follows up to "Discovery" is not part of the API. */

enum {
	POTASH_CS_DRIVES = 64,		/* /dev/nvme0 to /dev/nvme63 */
	POTASH_CS_NAMESPACES = 256,	/* /dev/ng0n1 to /dev/ng0n256 */
	POTASH_CS_OPEN = 16,		/* drives open at once */
	POTASH_CS_UNIT = 4096,		/* of memory */
	POTASH_CS_TRANSFER = 128 << 10,	/* bytes moved by one command to or from the host */
	POTASH_CS_COPY = 1 << 20,	/* bytes copied by one command within the drive */
	POTASH_CS_RANGES = 16,
	POTASH_CS_MEMORY_SET = 3, POTASH_CS_COMPUTE_SET = 4,	/* command sets */
};

struct potash_cs_memory {
	CS_MEM_HANDLE handle;
	u64 start, length;
	struct potash_cs_memory *next; /* at a higher address */
};

static struct potash_cs_device {
	int open, controller, memory, compute;
	unsigned number;
	u32 compute_nsid;
	u64 size;
	FDMAccess fdm; /* its identifier is that of the memory namespace */
	struct potash_cs_memory *allocated;
} potash_cs_devices[POTASH_CS_OPEN];

struct potash_cs_batch {
	int most, count;
	CsBatchRequest *requests[];
};

static inline CS_STATUS potash_cs_send(int fd, unsigned long request,
				       struct nvme_passthru_cmd64 *command)
{
	int status;

	command->timeout_ms = 60000;
	status = ioctl(fd, request, command);
	if (status < 0) {
		switch (errno) {
		case EACCES: case EPERM: return CS_NO_PERMISSIONS;
		case EINVAL: case EFAULT: return CS_INVALID_ARG;
		default: return CS_DEVICE_NOT_AVAILABLE;
		}
	}
	switch (status & 0x7FF) { /* SCT and SC */
	case 0x000: return CS_SUCCESS;
	case 0x002: case 0x00B: case 0x080: case 0x12C: /* field, namespace, LBA, command set */
	case 0x18B: case 0x18C: case 0x191: case 0x197: /* memory ranges */
		return CS_INVALID_ARG;
	case 0x007: case 0x371: return CS_IO_TIMEOUT; /* aborted, as Linux does after the time */
	case 0x18F: case 0x196: case 0x198: return CS_UNKNOWN_COMPUTE_FUNCTION;
	default: return CS_DEVICE_ERROR;
	}
}

static inline CS_STATUS potash_cs_identify(int controller, u32 nsid, u8 cns, u32 set, void *page)
{
	struct nvme_passthru_cmd64 command = {
		.opcode = 0x06, .nsid = nsid, .addr = (uintptr_t)page, .data_len = 4096,
		.cdw10 = cns, .cdw11 = set << 24,
	};

	return potash_cs_send(controller, NVME_IOCTL_ADMIN64_CMD, &command);
}

/* The first active namespace of a command set, 0 if there is none. */
static inline u32 potash_cs_first(int controller, u32 set)
{
	u32 list[1024];

	return potash_cs_identify(controller, 0, 0x07, set, list) ? 0 : list[0];
}

static inline int potash_cs_open_namespace(unsigned number, u32 nsid)
{
	for (int at = 1; at <= POTASH_CS_NAMESPACES; at++) {
		char path[32];
		int fd;

		snprintf(path, sizeof(path), "/dev/ng%un%d", number, at);
		fd = open(path, O_RDWR | O_CLOEXEC);
		if (fd >= 0 && (u32)ioctl(fd, NVME_IOCTL_ID) == nsid)
			return fd;
		if (fd >= 0)
			close(fd);
	}
	return -1;
}

static inline struct potash_cs_device *potash_cs_device(CS_DEV_HANDLE handle)
{
	if (handle < 1 || handle > POTASH_CS_OPEN || !potash_cs_devices[handle - 1].open)
		return NULL;
	return &potash_cs_devices[handle - 1];
}

static inline CS_DEV_HANDLE potash_cs_handle(const struct potash_cs_device *device)
{
	return device - potash_cs_devices + 1;
}

/* The place that refers to an allocation; NULL if there is none. */
static inline struct potash_cs_memory **potash_cs_find(CS_MEM_HANDLE handle,
						       struct potash_cs_device **device)
{
	for (int i = 0; i < POTASH_CS_OPEN; i++) {
		struct potash_cs_memory **at = &potash_cs_devices[i].allocated;

		for (*device = &potash_cs_devices[i]; *at; at = &(*at)->next)
			if ((*at)->handle == handle)
				return at;
	}
	return NULL;
}

/* Where `bytes` of device memory are, and how many follow from there. */
static inline CS_STATUS potash_cs_locate(const CsDevAFDM *place, u64 bytes, u64 multiple,
					 struct potash_cs_device **device, u64 *start, u64 *rest)
{
	struct potash_cs_memory **memory = potash_cs_find(place->MemHandle, device);

	if (!memory)
		return CS_UNKNOWN_MEMORY;
	if (place->ByteOffset >= (*memory)->length || place->ByteOffset % multiple)
		return CS_INVALID_ARG;
	*start = (*memory)->start + place->ByteOffset;
	*rest = (*memory)->length - place->ByteOffset;
	return !bytes || bytes > *rest || bytes % multiple ? CS_INVALID_ARG : CS_SUCCESS;
}

/* Memory Read (02h) or Write (05h). */
static inline CS_STATUS potash_cs_move(const struct potash_cs_device *device, u8 opcode, u64 start,
				       char *data, u64 bytes)
{
	u64 piece = POTASH_CS_TRANSFER;
	CS_STATUS status = CS_SUCCESS;

	for (u64 at = 0; at < bytes && !status; at += piece) {
		u32 length = bytes - at < piece ? bytes - at : piece;
		struct nvme_passthru_cmd64 command = {
			.opcode = opcode, .nsid = device->fdm.FDMId,
			.addr = (uintptr_t)(data + at), .data_len = length,
			.cdw10 = (u32)(start + at), .cdw11 = (start + at) >> 32, .cdw12 = length,
		};

		status = potash_cs_send(device->memory, NVME_IOCTL_IO64_CMD, &command);
	}
	return status;
}

static inline CS_STATUS potash_cs_copy_memory(const CsCopyMemRequest *request)
{
	struct potash_cs_device *device;
	u64 start, rest;
	CS_STATUS status;

	if (!request->HostVAddress ||
	    (request->Type != CS_COPY_TO_DEVICE && request->Type != CS_COPY_FROM_DEVICE))
		return CS_INVALID_ARG;
	/* The drive moves dwords. */
	status = potash_cs_locate(&request->DevMem, request->Bytes, 4, &device, &start, &rest);
	return status ? status : potash_cs_move(device,
						request->Type == CS_COPY_TO_DEVICE ? 0x05 : 0x02,
						start, request->HostVAddress, request->Bytes);
}

/* Copy blocks to memory, by Memory Copy, or memory to blocks, by Copy of the NVM command set. */
static inline CS_STATUS potash_cs_copy_blocks(const struct potash_cs_device *device, u64 start,
					      const CsBlockRange *range, u32 block, u32 most,
					      int load)
{
	int target = load ? device->memory
			  : potash_cs_open_namespace(device->number, range->NamespaceId);
	CS_STATUS status = target < 0 ? CS_DEVICE_NOT_AVAILABLE : CS_SUCCESS;

	for (u32 at = 0, blocks; at < range->NumBlocks && !status; at += blocks) {
		struct {
			u32 nsid, reserved;
			u64 start;
			u32 length, options;
			u64 tags;
		} source = { .nsid = device->fdm.FDMId, .start = start + (u64)at * block };
		struct nvme_passthru_cmd64 command = {
			.opcode = 0x19, .nsid = range->NamespaceId, .addr = (uintptr_t)&source,
			.data_len = sizeof(source), .cdw12 = 0x400, /* one range of format 4h */
		};
		u64 target_start = range->StartLba + at;

		blocks = range->NumBlocks - at < most ? range->NumBlocks - at : most;
		source.length = blocks * block;
		if (load) {
			command.opcode = 0x01;
			command.nsid = device->fdm.FDMId;
			command.cdw2 = blocks * block;
			command.cdw12 = 0x200; /* one range of format 2h, of 0's based blocks */
			target_start = start + (u64)at * block;
			source.nsid = range->NamespaceId;
			source.start = range->StartLba + at;
			source.length = blocks - 1;
		}
		command.cdw10 = (u32)target_start;
		command.cdw11 = target_start >> 32;
		status = potash_cs_send(target, NVME_IOCTL_IO64_CMD, &command);
	}
	if (!load && target >= 0)
		close(target);
	return status;
}

static inline CS_STATUS potash_cs_storage(const CsStorageRequest *request)
{
	const CsBlockIo *io = &request->u.BlockIo;
	struct potash_cs_device *device, *opened = potash_cs_device(request->DevHandle);
	int load = io->Type == CS_STORAGE_LOAD_TYPE;
	CsDevAFDM place = io->DevMem;
	CS_STATUS status = CS_SUCCESS;

	if (!opened)
		return CS_INVALID_HANDLE;
	if (request->Mode != CS_STORAGE_BLOCK_IO)
		return request->Mode == CS_STORAGE_FILE_IO ? CS_UNSUPPORTED : CS_INVALID_ARG;
	if ((!load && io->Type != CS_STORAGE_STORE_TYPE) || io->NumRanges < 1 || io->StorageIndex)
		return CS_INVALID_ARG;
	for (int i = 0; i < io->NumRanges && !status; i++) {
		const CsBlockRange *range = &io->Range[i];
		u8 page[4096];
		u64 start, rest, bytes;
		u32 block, most = 1 << 16;
		u16 longest;

		status = potash_cs_identify(opened->controller, range->NamespaceId, 0, 0, page);
		if (status)
			return status;
		/* FLBAS names one of 64 formats, whose LBADS is the block's size; MSSRL. */
		block = page[130 + 4 * ((page[26] & 0x0F) | (page[26] & 0x60) >> 1)];
		if (block < 9 || block > 20)
			return CS_INVALID_ARG; /* no active namespace of blocks */
		block = 1u << block;
		memcpy(&longest, page + 74, sizeof(longest));
		if (!load && longest < most)
			most = longest;
		if (most > POTASH_CS_COPY / block)
			most = POTASH_CS_COPY / block;
		if (!most)
			return CS_UNSUPPORTED; /* no Copy */
		bytes = (u64)range->NumBlocks * block;
		status = potash_cs_locate(&place, bytes, 4, &device, &start, &rest);
		if (!status && device != opened)
			status = CS_UNKNOWN_MEMORY;
		if (!status)
			status = potash_cs_copy_blocks(device, start, range, block, most, load);
		place.ByteOffset += bytes;
	}
	return status;
}

static inline CS_STATUS potash_cs_execute(const CsComputeRequest *request, u64 *value)
{
	struct potash_cs_device *device = potash_cs_device((request->CSFId >> 16) + 1), *owner;
	struct { u32 nsid, length; u64 start, reserved[2]; } ranges[POTASH_CS_RANGES] = { 0 };
	u64 parameters[2] = { 0, 0 }, start, rest;
	int count = 0, values = 0;
	CS_STATUS status;

	if (!device)
		return CS_UNKNOWN_COMPUTE_FUNCTION;
	if (request->NumArgs < 0)
		return CS_INVALID_ARG;
	for (int i = 0; i < request->NumArgs; i++) {
		const CsComputeArg *argument = &request->Args[i];

		switch (argument->Type) {
		case CS_AFDM_TYPE:
			if (count == POTASH_CS_RANGES)
				return CS_INVALID_ARG;
			status = potash_cs_locate(&argument->u.DevMem, POTASH_CS_UNIT,
						  POTASH_CS_UNIT, &owner, &start, &rest);
			if (status || owner != device)
				return status ? status : CS_UNKNOWN_MEMORY;
			ranges[count].nsid = device->fdm.FDMId;
			ranges[count].length = rest;
			ranges[count++].start = start;
			break;
		case CS_32BIT_VALUE_TYPE:
		case CS_64BIT_VALUE_TYPE:
			if (values == 2)
				return CS_INVALID_ARG;
			parameters[values++] = argument->Type == CS_32BIT_VALUE_TYPE
						       ? argument->u.Value32 : argument->u.Value64;
			break;
		case CS_STREAM_TYPE:
		case CS_DESCRIPTOR_TYPE: return CS_UNSUPPORTED;
		default: return CS_INVALID_ARG;
		}
	}
	struct nvme_passthru_cmd64 command = {
		.opcode = 0x01, .nsid = device->compute_nsid, .cdw2 = request->CSFId & 0xFFFF,
		.cdw3 = count, .addr = count ? (uintptr_t)ranges : 0,
		.data_len = count * sizeof(ranges[0]),
		.cdw10 = (u32)parameters[0], .cdw11 = parameters[0] >> 32,
		.cdw12 = (u32)parameters[1], .cdw13 = parameters[1] >> 32,
	};
	status = potash_cs_send(device->compute, NVME_IOCTL_IO64_CMD, &command);
	*value = command.result;
	return status == CS_DEVICE_ERROR ? CS_ERROR_IN_EXECUTION : status;
}

static inline CS_STATUS potash_cs_run(const CsBatchRequest *request, u64 *value)
{
	switch (request->ReqType) {
	case CS_COPY_AFDM: return potash_cs_copy_memory(&request->u.CopyMem);
	case CS_STORAGE_IO: return potash_cs_storage(&request->u.StorageIo);
	default: return potash_cs_execute(&request->u.Compute, value);
	}
}

/* Tell a request's end: what ran is told by the callback, what was refused is returned. */
static inline CS_STATUS potash_cs_end(CS_STATUS status, u64 value, void *context,
				      csQueueCallbackFn callback, CS_REQ_HANDLE *handle, u64 *told)
{
	int ran = status == CS_SUCCESS || status == CS_ERROR_IN_EXECUTION ||
		  status == CS_DEVICE_ERROR || status == CS_IO_TIMEOUT;

	if (handle)
		*handle = NULL;
	if (told && ran)
		*told = value;
	if (!callback || !ran)
		return status;
	callback(context, status, value);
	return CS_QUEUED;
}

/* A descriptor of the Program List (log page 82h): 64 bytes behind a header of 64 bytes. */
static inline CS_STATUS potash_cs_listed(const struct potash_cs_device *device, u32 offset,
					 void *data)
{
	struct nvme_passthru_cmd64 command = {
		.opcode = 0x02, .nsid = device->compute_nsid,
		.addr = (uintptr_t)data, .data_len = 64, .cdw10 = 15 << 16 | 0x82,
		.cdw12 = offset, .cdw14 = (u32)POTASH_CS_COMPUTE_SET << 24,
	};

	return potash_cs_send(device->controller, NVME_IOCTL_ADMIN64_CMD, &command);
}

static inline CS_STATUS potash_cs_tell(const char *text, unsigned *length, char *buffer)
{
	unsigned room = *length;

	*length = strlen(text) + 1;
	if (!buffer)
		return CS_SUCCESS;
	if (room < *length)
		return CS_INVALID_LENGTH;
	memcpy(buffer, text, *length);
	return CS_SUCCESS;
}

/* Discovery. Without a buffer, the length that it must have is told. */

/* The names of all drives, separated by commas. */
static inline CS_STATUS csQueryCSxList(int *Length, char *Buffer)
{
	char names[POTASH_CS_DRIVES * sizeof("/dev/nvme00,")] = "";
	unsigned length;
	CS_STATUS status;

	if (!Length || *Length < 0)
		return CS_INVALID_ARG;
	for (unsigned number = 0; number < POTASH_CS_DRIVES; number++) {
		size_t end = strlen(names);
		int fd;

		snprintf(names + end, sizeof(names) - end, "%s/dev/nvme%u", end ? "," : "", number);
		fd = open(names + end + (end ? 1 : 0), O_RDWR | O_CLOEXEC);
		if (fd < 0 || !potash_cs_first(fd, POTASH_CS_MEMORY_SET) ||
		    !potash_cs_first(fd, POTASH_CS_COMPUTE_SET))
			names[end] = 0;
		if (fd >= 0)
			close(fd);
	}
	if (!names[0])
		return CS_NO_SUCH_ENTITY_EXISTS;
	length = *Length;
	status = potash_cs_tell(names, &length, Buffer);
	*Length = length;
	return status;
}

/* The drive of a device, or of a file or folder on a file system that is directly on a drive. */
static inline CS_STATUS csGetCSxFromPath(const char *Path, unsigned int *Length, char *DevName)
{
	char link[64], device[512], name[32], *last;
	struct stat file;
	unsigned number;
	ssize_t length;

	if (!Path || !Length)
		return CS_INVALID_ARG;
	if (stat(Path, &file))
		return errno == EACCES ? CS_NO_PERMISSIONS : CS_NO_SUCH_ENTITY_EXISTS;
	if (!S_ISBLK(file.st_mode) && !S_ISCHR(file.st_mode))
		file.st_rdev = file.st_dev;
	snprintf(link, sizeof(link), "/sys/dev/%s/%u:%u", S_ISCHR(file.st_mode) ? "char" : "block",
		 major(file.st_rdev), minor(file.st_rdev));
	length = readlink(link, device, sizeof(device) - 1);
	device[length < 0 ? 0 : length] = 0;
	last = strrchr(device, '/');
	if (!last || (sscanf(last, "/nvme%u", &number) != 1 && sscanf(last, "/ng%u", &number) != 1))
		return CS_ENTITY_NOT_ON_DEVICE;
	snprintf(name, sizeof(name), "/dev/nvme%u", number);
	return potash_cs_tell(name, Length, DevName);
}

static inline CS_STATUS csCloseCSx(CS_DEV_HANDLE DevHandle)
{
	struct potash_cs_device *device = potash_cs_device(DevHandle);

	if (!device)
		return CS_INVALID_HANDLE;
	if (device->allocated)
		return CS_MEMORY_IN_USE;
	if (device->memory >= 0)
		close(device->memory);
	if (device->compute >= 0)
		close(device->compute);
	close(device->controller);
	device->open = 0;
	return CS_SUCCESS;
}

static inline CS_STATUS csOpenCSx(const char *DevName, void *DevContext, CS_DEV_HANDLE *DevHandle)
{
	struct potash_cs_device *device = potash_cs_devices;
	CS_STATUS status = CS_ENTITY_NOT_ON_DEVICE;
	u64 page[512];
	unsigned number;
	int end = 0;

	(void)DevContext; /* for notifications, of which there are none */
	if (!DevName || !DevHandle || sscanf(DevName, "/dev/nvme%u%n", &number, &end) != 1 ||
	    DevName[end])
		return CS_INVALID_ARG;
	while (device < potash_cs_devices + POTASH_CS_OPEN && device->open)
		device++;
	if (device == potash_cs_devices + POTASH_CS_OPEN)
		return CS_OUT_OF_RESOURCES;
	memset(device, 0, sizeof(*device));
	device->number = number;
	device->controller = open(DevName, O_RDWR | O_CLOEXEC);
	if (device->controller < 0)
		return errno == EACCES || errno == EPERM ? CS_NO_PERMISSIONS : status;
	device->open = 1;
	device->fdm.FDMId = potash_cs_first(device->controller, POTASH_CS_MEMORY_SET);
	device->compute_nsid = potash_cs_first(device->controller, POTASH_CS_COMPUTE_SET);
	device->memory = device->compute = -1;
	if (device->fdm.FDMId && device->compute_nsid) {
		device->memory = potash_cs_open_namespace(number, device->fdm.FDMId);
		device->compute = potash_cs_open_namespace(number, device->compute_nsid);
	}
	if (device->memory >= 0 && device->compute >= 0)
		status = flock(device->memory, LOCK_EX | LOCK_NB)
				 ? CS_HANDLE_IN_USE
				 : potash_cs_identify(device->controller, device->fdm.FDMId, 0x05,
						      POTASH_CS_MEMORY_SET, page);
	if (status) {
		csCloseCSx(potash_cs_handle(device));
		return status;
	}
	device->size = page[0] / POTASH_CS_UNIT * POTASH_CS_UNIT;
	*DevHandle = potash_cs_handle(device);
	return CS_SUCCESS;
}

/* Device memory. */

static inline CS_STATUS csFreeMem(CS_MEM_HANDLE MemHandle, const CsMemFlags *MemFlags)
{
	struct potash_cs_device *device;
	struct potash_cs_memory **at = potash_cs_find(MemHandle, &device), *memory;

	if (!at)
		return CS_UNKNOWN_MEMORY;
	if (MemFlags && MemFlags->Flags)
		return CS_UNSUPPORTED;
	memory = *at;
	*at = memory->next;
	free(memory);
	return CS_SUCCESS;
}

static inline CS_STATUS csAllocMem(CS_DEV_HANDLE DevHandle, int Bytes, const CsMemFlags *MemFlags,
				   CS_MEM_HANDLE *MemHandle, CS_MEM_PTR *VAddressPtr)
{
	static CS_MEM_HANDLE last;
	struct potash_cs_device *device = potash_cs_device(DevHandle);
	struct potash_cs_memory **at, *memory;
	u64 start = 0, length;

	if (!device)
		return CS_INVALID_HANDLE;
	if (Bytes < 1 || !MemHandle)
		return CS_INVALID_ARG;
	if (MemFlags && MemFlags->FDMId && MemFlags->FDMId != device->fdm.FDMId)
		return CS_INVALID_OPTION;
	if (MemFlags && MemFlags->Flags)
		return CS_UNSUPPORTED; /* contents are as they were */
	if (VAddressPtr)
		return CS_COULD_NOT_MAP_MEMORY;
	length = ((u64)Bytes + POTASH_CS_UNIT - 1) / POTASH_CS_UNIT * POTASH_CS_UNIT;
	/* The first gap that is large enough. */
	for (at = &device->allocated; *at && (*at)->start - start < length; at = &(*at)->next)
		start = (*at)->start + (*at)->length;
	if (device->size - start < length)
		return CS_NOT_ENOUGH_MEMORY;
	memory = malloc(sizeof(*memory));
	if (!memory)
		return CS_OUT_OF_RESOURCES;
	*memory = (struct potash_cs_memory){ ++last, start, length, *at };
	*at = memory;
	*MemHandle = memory->handle;
	return CS_SUCCESS;
}

/* Functions. They are found by their names: GlobalId has to be 0. */

static inline CS_STATUS csGetCSFId(CS_DEV_HANDLE DevHandle, const char *CSFName, u64 GlobalId,
				   int *Length, int *Count, CSFIdInfo *Buffer)
{
	static const char *const names[] = {
		"COPY", "FILL", "CRC32C", "SUM", "MINIMUM", "MAXIMUM", "GREP", "FILTER",
	};
	struct potash_cs_device *device = potash_cs_device(DevHandle);
	u64 descriptor[8];
	unsigned long index = 0;
	char *end;
	CS_STATUS status;
	int room;

	if (!device)
		return CS_INVALID_HANDLE;
	if (!Length || !Count)
		return CS_INVALID_ARG;
	if (!CSFName || GlobalId)
		return CS_UNSUPPORTED;
	while (index < 8 && strcasecmp(names[index], CSFName))
		index++;
	if (index == 8) {
		index = strtoul(CSFName, &end, 10);
		if (CSFName[0] < '0' || CSFName[0] > '9' || *end)
			return CS_INVALID_FUNCTION_NAME;
	}
	status = potash_cs_listed(device, 0, descriptor);
	if (!status && index >= (u32)descriptor[0])
		return CS_INVALID_FUNCTION_NAME;
	if (!status)
		status = potash_cs_listed(device, 64 + 64 * index, descriptor);
	if (status)
		return status;
	if (!(descriptor[0] & 4)) /* activated */
		return CS_INVALID_FUNCTION_NAME;
	room = *Length;
	*Length = sizeof(*Buffer);
	*Count = 1;
	if (!Buffer)
		return CS_SUCCESS;
	if (room < *Length)
		return CS_INVALID_LENGTH;
	*Buffer = (CSFIdInfo){
		.CSFId = (u32)(DevHandle - 1) << 16 | (u32)index,
		.Count = 1, .NumFDMs = 1, .FDMList = &device->fdm,
	};
	return CS_SUCCESS;
}

static inline void csHelperSetComputeArg(CsComputeArg *ArgPtr, CS_COMPUTE_ARG_TYPE Type, ...)
{
	va_list values;

	va_start(values, Type);
	memset(ArgPtr, 0, sizeof(*ArgPtr));
	ArgPtr->Type = Type;
	switch (Type) {
	case CS_AFDM_TYPE:
		ArgPtr->u.DevMem.MemHandle = va_arg(values, CS_MEM_HANDLE);
		/* Applications pass a plain 0, too: on 64-bit hosts it arrives as well. */
		ArgPtr->u.DevMem.ByteOffset = va_arg(values, unsigned long);
		break;
	case CS_32BIT_VALUE_TYPE: ArgPtr->u.Value32 = va_arg(values, u32); break;
	case CS_64BIT_VALUE_TYPE: ArgPtr->u.Value64 = va_arg(values, u64); break;
	case CS_STREAM_TYPE: ArgPtr->u.StreamHandle = va_arg(values, CS_STREAM_HANDLE); break;
	default: break;
	}
	va_end(values);
}

/* Requests. */

static inline CS_STATUS csQueueStorageRequest(const CsStorageRequest *Req, void *Context,
					      csQueueCallbackFn CallbackFn,
					      CS_EVT_HANDLE EventHandle, CS_REQ_HANDLE *ReqHandle,
					      u64 *CompValue)
{
	CS_STATUS status = !Req ? CS_INVALID_ARG
			   : EventHandle ? CS_UNSUPPORTED : potash_cs_storage(Req);

	return potash_cs_end(status, 0, Context, CallbackFn, ReqHandle, CompValue);
}

static inline CS_STATUS csQueueCopyMemRequest(const CsCopyMemRequest *CopyReq, void *Context,
					      csQueueCallbackFn CallbackFn,
					      CS_EVT_HANDLE EventHandle, CS_REQ_HANDLE *ReqHandle,
					      u64 *CompValue)
{
	CS_STATUS status = !CopyReq ? CS_INVALID_ARG
			   : EventHandle ? CS_UNSUPPORTED : potash_cs_copy_memory(CopyReq);

	return potash_cs_end(status, 0, Context, CallbackFn, ReqHandle, CompValue);
}

/* CompValue is what the program returns. */
static inline CS_STATUS csQueueComputeRequest(const CsComputeRequest *Req, void *Context,
					      csQueueCallbackFn CallbackFn,
					      CS_EVT_HANDLE EventHandle, CS_REQ_HANDLE *ReqHandle,
					      u64 *CompValue)
{
	u64 value = 0;
	CS_STATUS status = !Req ? CS_INVALID_ARG
			   : EventHandle ? CS_UNSUPPORTED : potash_cs_execute(Req, &value);

	return potash_cs_end(status, value, Context, CallbackFn, ReqHandle, CompValue);
}

static inline CS_STATUS csAbortRequest(CS_REQ_HANDLE ReqHandle)
{
	(void)ReqHandle; /* no request is in progress when a queue function has returned */
	return CS_UNSUPPORTED;
}

/* Batches: serial ones, to which requests are added at the end. */

static inline CS_STATUS csAllocBatchRequest(CS_BATCH_MODE Mode, int MaxReqs,
					    CS_BATCH_HANDLE *BatchHandle)
{
	if (MaxReqs < 1 || !BatchHandle)
		return CS_INVALID_ARG;
	if (Mode != CS_BATCH_SERIAL)
		return Mode == CS_BATCH_PARALLEL || Mode == CS_BATCH_HYBRID ? CS_UNSUPPORTED
									    : CS_INVALID_OPTION;
	*BatchHandle = calloc(1, sizeof(**BatchHandle) + MaxReqs * sizeof(CsBatchRequest *));
	if (!*BatchHandle)
		return CS_NOT_ENOUGH_MEMORY;
	(*BatchHandle)->most = MaxReqs;
	return CS_SUCCESS;
}

static inline CS_STATUS csFreeBatchRequest(CS_BATCH_HANDLE BatchHandle)
{
	if (!BatchHandle)
		return CS_INVALID_HANDLE;
	for (int i = 0; i < BatchHandle->count; i++)
		free(BatchHandle->requests[i]);
	free(BatchHandle);
	return CS_SUCCESS;
}

/* Indexes begin at 1. `After` is 0 or the last entry, and `Before` 0: other places are refused. */
static inline CS_STATUS csAddBatchEntry(CS_BATCH_HANDLE BatchHandle, const CsBatchRequest *Req,
					CS_BATCH_INDEX Before, CS_BATCH_INDEX After,
					CS_BATCH_INDEX *Curr)
{
	size_t size = sizeof(*Req), parts = 0;
	CsBatchRequest *copy;

	if (!BatchHandle)
		return CS_INVALID_HANDLE;
	if (!Req || Req->ReqType < CS_COPY_AFDM || Req->ReqType > CS_QUEUE_COMPUTE)
		return CS_INVALID_ARG;
	if (Before || (After && After != (CS_BATCH_INDEX)BatchHandle->count))
		return CS_UNSUPPORTED;
	if (BatchHandle->count == BatchHandle->most)
		return CS_OUT_OF_RESOURCES;
	if (Req->ReqType == CS_QUEUE_COMPUTE && Req->u.Compute.NumArgs > 0)
		parts = offsetof(CsBatchRequest, u.Compute.Args) +
			Req->u.Compute.NumArgs * sizeof(CsComputeArg);
	if (Req->ReqType == CS_STORAGE_IO && Req->u.StorageIo.Mode == CS_STORAGE_BLOCK_IO &&
	    Req->u.StorageIo.u.BlockIo.NumRanges > 0)
		parts = offsetof(CsBatchRequest, u.StorageIo.u.BlockIo.Range) +
			Req->u.StorageIo.u.BlockIo.NumRanges * sizeof(CsBlockRange);
	size = parts > size ? parts : size;
	copy = malloc(size);
	if (!copy)
		return CS_NOT_ENOUGH_MEMORY;
	memcpy(copy, Req, size);
	BatchHandle->requests[BatchHandle->count++] = copy;
	if (Curr)
		*Curr = BatchHandle->count;
	return CS_SUCCESS;
}

/* Run the requests up to the first that fails, whose status the batch has; it can be queued again.
 * CompValue is what the last program that ran has returned. */
static inline CS_STATUS csQueueBatchRequest(CS_BATCH_HANDLE BatchHandle, void *Context,
					    csQueueCallbackFn CallbackFn, CS_EVT_HANDLE EventHandle,
					    CS_REQ_HANDLE *ReqHandle, u64 *CompValue)
{
	u64 value = 0;
	CS_STATUS status = !BatchHandle ? CS_INVALID_HANDLE
			   : EventHandle ? CS_UNSUPPORTED : CS_SUCCESS;

	for (int i = 0; !status && i < BatchHandle->count; i++)
		status = potash_cs_run(BatchHandle->requests[i], &value);
	return potash_cs_end(status, value, Context, CallbackFn, ReqHandle, CompValue);
}

#endif
