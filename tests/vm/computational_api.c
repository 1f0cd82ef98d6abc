/* Uses of examples/include/potash_cs.h on a drive: each check that fails is a line of output. */
#include "potash_cs.h"

#define EXPECT(status, call) \
	do { \
		int got = (call); \
		if (got != (int)(status)) \
			printf("%d: %s is %d, not " #status "\n", __LINE__, #call, got); \
	} while (0)

static struct { int calls; CS_STATUS status; u64 value; } told;

static void tell(void *context, CS_STATUS status, u64 value)
{
	EXPECT(1, context == &told);
	told.calls++;
	told.status = status;
	told.value = value;
}

static CS_STATUS copy(CS_MEM_COPY_TYPE type, void *host, CS_MEM_HANDLE memory, u64 at, u32 bytes)
{
	CsCopyMemRequest request = { type, host, { memory, at }, bytes };

	return csQueueCopyMemRequest(&request, NULL, NULL, NULL, NULL, NULL);
}

static CsBatchRequest storage(CS_DEV_HANDLE device, CS_STORAGE_IO_TYPE type, CS_MEM_HANDLE memory,
			      u64 at, u64 lba, u32 blocks)
{
	return (CsBatchRequest){ .ReqType = CS_STORAGE_IO, .u.StorageIo = {
		.Mode = CS_STORAGE_BLOCK_IO, .DevHandle = device, .u.BlockIo = {
			.Type = type, .DevMem = { memory, at }, .NumRanges = 1,
			.Range = { { 1, lba, blocks } },
		},
	} };
}

static CS_STATUS queue(const CsBatchRequest *request)
{
	return csQueueStorageRequest(&request->u.StorageIo, NULL, NULL, NULL, NULL, NULL);
}

static void discover(void)
{
	char name[64];
	int length = sizeof(name);
	unsigned small = 3, room = sizeof(name);
	CS_DEV_HANDLE device;

	EXPECT(CS_SUCCESS, csQueryCSxList(&length, name));
	EXPECT(0, strcmp(name, "/dev/nvme0"));
	length = 3;
	EXPECT(CS_INVALID_LENGTH, csQueryCSxList(&length, name));
	EXPECT(11, length);
	EXPECT(CS_SUCCESS, csQueryCSxList(&length, NULL));
	EXPECT(CS_INVALID_ARG, csQueryCSxList(NULL, name));
	EXPECT(CS_SUCCESS, csGetCSxFromPath("/dev/ng0n2", &room, name));
	EXPECT(0, strcmp(name, "/dev/nvme0"));
	EXPECT(CS_INVALID_LENGTH, csGetCSxFromPath("/dev/nvme0n1", &small, name));
	EXPECT(CS_ENTITY_NOT_ON_DEVICE, csGetCSxFromPath("/proc", &room, name));
	EXPECT(CS_NO_SUCH_ENTITY_EXISTS, csGetCSxFromPath("/none", &room, name));
	EXPECT(CS_INVALID_ARG, csGetCSxFromPath(NULL, &room, name));
	EXPECT(CS_ENTITY_NOT_ON_DEVICE, csOpenCSx("/dev/nvme63", NULL, &device));
	EXPECT(CS_INVALID_ARG, csOpenCSx("/dev/null", NULL, &device));
	EXPECT(CS_INVALID_ARG, csOpenCSx("/dev/nvme0n1", NULL, &device));
	EXPECT(CS_INVALID_HANDLE, csCloseCSx(0));
	EXPECT(CS_INVALID_HANDLE, csCloseCSx(1));
}

static void allocate(CS_DEV_HANDLE device)
{
	CS_MEM_HANDLE first, second, third, large;
	CS_MEM_PTR mapped;
	CsMemFlags flags = { .Flags = CS_FDM_CLEAR }, other = { .FDMId = 99 };
	char data[4096];

	EXPECT(CS_SUCCESS, csAllocMem(device, 4096, NULL, &first, NULL));
	EXPECT(CS_SUCCESS, csAllocMem(device, 5000, NULL, &second, NULL));
	EXPECT(CS_SUCCESS, csAllocMem(device, 1, NULL, &third, NULL));
	EXPECT(CS_NOT_ENOUGH_MEMORY, csAllocMem(device, 4 << 20, NULL, &large, NULL));
	EXPECT(CS_INVALID_ARG, csAllocMem(device, 0, NULL, &large, NULL));
	EXPECT(CS_INVALID_ARG, csAllocMem(device, 1, NULL, NULL, NULL));
	EXPECT(CS_INVALID_HANDLE, csAllocMem(device + 1, 1, NULL, &large, NULL));
	EXPECT(CS_COULD_NOT_MAP_MEMORY, csAllocMem(device, 1, NULL, &large, &mapped));
	EXPECT(CS_UNSUPPORTED, csAllocMem(device, 1, &flags, &large, NULL));
	EXPECT(CS_INVALID_OPTION, csAllocMem(device, 1, &other, &large, NULL));

	/* What was freed is used again, and its neighbours keep what they have. */
	memset(data, 1, sizeof(data));
	EXPECT(CS_SUCCESS, copy(CS_COPY_TO_DEVICE, data, first, 0, 4096));
	memset(data, 3, sizeof(data));
	EXPECT(CS_SUCCESS, copy(CS_COPY_TO_DEVICE, data, third, 0, 4096));
	EXPECT(CS_SUCCESS, csFreeMem(second, NULL));
	EXPECT(CS_UNKNOWN_MEMORY, csFreeMem(second, NULL));
	EXPECT(CS_UNKNOWN_MEMORY, copy(CS_COPY_TO_DEVICE, data, second, 0, 4));
	EXPECT(CS_SUCCESS, csAllocMem(device, (4 << 20) - (4 << 12), NULL, &large, NULL));
	EXPECT(CS_SUCCESS, csAllocMem(device, 8192, NULL, &second, NULL));
	EXPECT(CS_NOT_ENOUGH_MEMORY, csAllocMem(device, 1, NULL, &large, NULL));
	memset(data, 2, sizeof(data));
	EXPECT(CS_SUCCESS, copy(CS_COPY_TO_DEVICE, data, second, 0, 4096));
	EXPECT(CS_SUCCESS, copy(CS_COPY_TO_DEVICE, data, second, 4096, 4096));
	EXPECT(CS_SUCCESS, copy(CS_COPY_FROM_DEVICE, data, first, 4092, 4));
	EXPECT(1, data[0] == 1 && data[3] == 1 && data[4] == 2);
	EXPECT(CS_SUCCESS, copy(CS_COPY_FROM_DEVICE, data, third, 0, 4));
	EXPECT(3, data[0]);

	EXPECT(CS_INVALID_ARG, copy(CS_COPY_TO_DEVICE, data, first, 4, 4096));
	EXPECT(CS_INVALID_ARG, copy(CS_COPY_TO_DEVICE, data, first, 2, 4));
	EXPECT(CS_INVALID_ARG, copy(CS_COPY_TO_DEVICE, data, first, 0, 3));
	EXPECT(CS_INVALID_ARG, copy(CS_COPY_TO_DEVICE, data, first, 0, 0));
	EXPECT(CS_INVALID_ARG, copy(CS_COPY_TO_DEVICE, data, first, ~0ull - 3, 4));
	EXPECT(CS_INVALID_ARG, copy(CS_COPY_TO_DEVICE, NULL, first, 0, 4));
	EXPECT(CS_INVALID_ARG, copy(0, data, first, 0, 4));
	EXPECT(CS_MEMORY_IN_USE, csCloseCSx(device));
	EXPECT(CS_SUCCESS, csFreeMem(first, NULL));
	EXPECT(CS_SUCCESS, csFreeMem(second, NULL));
	EXPECT(CS_SUCCESS, csFreeMem(third, NULL));
	EXPECT(CS_SUCCESS, csFreeMem(large, NULL));
}

int main(void)
{
	enum { SIZE = 3 << 20 }; /* several commands */
	char *data = malloc(SIZE), *back = calloc(1, SIZE);
	CS_DEV_HANDLE device, again;
	CS_MEM_HANDLE memory;
	CS_BATCH_HANDLE batch;
	CS_BATCH_INDEX entry;
	CS_REQ_HANDLE handle = &device;
	CSFIdInfo info;
	CsBatchRequest request;
	CsComputeRequest *compute = malloc(sizeof(*compute) + 18 * sizeof(CsComputeArg));
	int length = 3, count;
	u64 value = 5;

	discover();
	EXPECT(CS_SUCCESS, csOpenCSx("/dev/nvme0", NULL, &device));
	EXPECT(CS_HANDLE_IN_USE, csOpenCSx("/dev/nvme0", NULL, &again));
	allocate(device);

	/* Host to memory to blocks, and back. */
	for (u32 i = 0; i < SIZE; i++)
		data[i] = i * 7 + (i >> 12);
	EXPECT(CS_SUCCESS, csAllocMem(device, SIZE, NULL, &memory, NULL));
	EXPECT(CS_SUCCESS, copy(CS_COPY_TO_DEVICE, data, memory, 0, SIZE));
	request = storage(device, CS_STORAGE_STORE_TYPE, memory, 0, 1000, SIZE / 4096);
	EXPECT(CS_SUCCESS, queue(&request));
	EXPECT(CS_SUCCESS, copy(CS_COPY_TO_DEVICE, back, memory, 0, SIZE));
	request = storage(device, CS_STORAGE_LOAD_TYPE, memory, 0, 1000, SIZE / 4096);
	EXPECT(CS_SUCCESS, queue(&request));
	EXPECT(CS_SUCCESS, copy(CS_COPY_FROM_DEVICE, back, memory, 0, SIZE));
	EXPECT(0, memcmp(data, back, SIZE));

	request.u.StorageIo.u.BlockIo.DevMem.ByteOffset = 4096;
	EXPECT(CS_INVALID_ARG, queue(&request));
	request = storage(device, CS_STORAGE_LOAD_TYPE, memory, 0, 1ull << 40, 1);
	EXPECT(CS_INVALID_ARG, queue(&request));
	request = storage(device, CS_STORAGE_LOAD_TYPE, memory + 1, 0, 0, 1);
	EXPECT(CS_UNKNOWN_MEMORY, queue(&request));
	request = storage(device + 1, CS_STORAGE_LOAD_TYPE, memory, 0, 0, 1);
	EXPECT(CS_INVALID_HANDLE, queue(&request));
	request = storage(device, 3, memory, 0, 0, 1);
	EXPECT(CS_INVALID_ARG, queue(&request));
	request = storage(device, CS_STORAGE_LOAD_TYPE, memory, 0, 0, 1);
	request.u.StorageIo.u.BlockIo.Range[0].NamespaceId = 2;
	EXPECT(CS_INVALID_ARG, queue(&request));
	request.u.StorageIo.Mode = CS_STORAGE_FILE_IO;
	EXPECT(CS_UNSUPPORTED, queue(&request));
	EXPECT(CS_INVALID_ARG, csQueueStorageRequest(NULL, NULL, NULL, NULL, NULL, NULL));

	/* Functions, by name and by index. */
	EXPECT(CS_INVALID_LENGTH, csGetCSFId(device, "sum", 0, &length, &count, &info));
	EXPECT(CS_SUCCESS, csGetCSFId(device, "sum", 0, &length, &count, &info));
	EXPECT(3, info.CSFId);
	EXPECT(2, info.FDMList[0].FDMId);
	EXPECT(CS_SUCCESS, csGetCSFId(device, "7", 0, &length, &count, &info));
	EXPECT(7, info.CSFId);
	EXPECT(CS_INVALID_FUNCTION_NAME, csGetCSFId(device, "15", 0, &length, &count, &info));
	EXPECT(CS_INVALID_FUNCTION_NAME, csGetCSFId(device, "99999", 0, &length, &count, &info));
	EXPECT(CS_INVALID_FUNCTION_NAME, csGetCSFId(device, "3x", 0, &length, &count, &info));
	EXPECT(CS_INVALID_FUNCTION_NAME, csGetCSFId(device, "", 0, &length, &count, &info));
	EXPECT(CS_UNSUPPORTED, csGetCSFId(device, NULL, 7, &length, &count, &info));

	/* A request with a callback, and refused ones, which do not call it. */
	compute->CSFId = 3;
	compute->NumArgs = 2;
	csHelperSetComputeArg(&compute->Args[0], CS_AFDM_TYPE, memory, 4096ul);
	csHelperSetComputeArg(&compute->Args[1], CS_32BIT_VALUE_TYPE, 8u);
	EXPECT(CS_QUEUED, csQueueComputeRequest(compute, &told, tell, NULL, &handle, &value));
	EXPECT(1, told.calls == 1 && told.status == CS_SUCCESS && !handle);
	EXPECT(0, memcmp(&value, data + 4096, 8) || told.value != value);
	EXPECT(CS_UNSUPPORTED, csQueueComputeRequest(compute, &told, tell, &told, NULL, NULL));
	compute->Args[0].u.DevMem.ByteOffset = 512;
	EXPECT(CS_INVALID_ARG, csQueueComputeRequest(compute, &told, tell, NULL, NULL, NULL));
	compute->Args[0].u.DevMem = (CsDevAFDM){ memory + 1, 0 };
	EXPECT(CS_UNKNOWN_MEMORY, csQueueComputeRequest(compute, &told, tell, NULL, NULL, NULL));
	compute->Args[0].u.DevMem = (CsDevAFDM){ memory, 0 };
	compute->CSFId = 15;
	EXPECT(CS_UNKNOWN_COMPUTE_FUNCTION,
	       csQueueComputeRequest(compute, &told, tell, NULL, NULL, NULL));
	compute->CSFId = 1 << 16 | 3;
	EXPECT(CS_UNKNOWN_COMPUTE_FUNCTION,
	       csQueueComputeRequest(compute, &told, tell, NULL, NULL, NULL));
	compute->CSFId = 3;
	csHelperSetComputeArg(&compute->Args[1], CS_STREAM_TYPE, (u64)1);
	EXPECT(CS_UNSUPPORTED, csQueueComputeRequest(compute, &told, tell, NULL, NULL, NULL));
	for (int i = 0; i < 17; i++)
		csHelperSetComputeArg(&compute->Args[i], CS_64BIT_VALUE_TYPE, (u64)i);
	compute->NumArgs = 3;
	EXPECT(CS_INVALID_ARG, csQueueComputeRequest(compute, &told, tell, NULL, NULL, NULL));
	compute->NumArgs = 2; /* no memory */
	EXPECT(CS_INVALID_ARG, csQueueComputeRequest(compute, &told, tell, NULL, NULL, NULL));
	EXPECT(1, told.calls);
	EXPECT(CS_UNSUPPORTED, csAbortRequest(handle));

	/* A batch: blocks to memory, then their sum; a failure ends it. */
	EXPECT(CS_UNSUPPORTED, csAllocBatchRequest(CS_BATCH_PARALLEL, 2, &batch));
	EXPECT(CS_SUCCESS, csAllocBatchRequest(CS_BATCH_SERIAL, 3, &batch));
	request = storage(device, CS_STORAGE_LOAD_TYPE, memory, 0, 1002, 1);
	EXPECT(CS_SUCCESS, csAddBatchEntry(batch, &request, 0, 0, &entry));
	EXPECT(1, entry);
	request = (CsBatchRequest){ .ReqType = CS_QUEUE_COMPUTE, .u.Compute.CSFId = 3 };
	request.u.Compute.NumArgs = 1;
	csHelperSetComputeArg(request.u.Compute.Args, CS_AFDM_TYPE, memory, 0ul);
	EXPECT(CS_UNSUPPORTED, csAddBatchEntry(batch, &request, 1, 0, &entry));
	EXPECT(CS_SUCCESS, csAddBatchEntry(batch, &request, 0, entry, &entry));
	EXPECT(CS_SUCCESS, csQueueBatchRequest(batch, NULL, NULL, NULL, NULL, &value));
	EXPECT(CS_SUCCESS, copy(CS_COPY_FROM_DEVICE, back, memory, 0, 4096));
	EXPECT(0, memcmp(data + 8192, back, 4096));
	for (int i = 0; i < 4096; i += 8) {
		u64 number;

		memcpy(&number, back + i, 8);
		value -= number;
	}
	for (int i = 4096; i < SIZE; i += 8) {
		u64 number;

		memcpy(&number, data + i, 8);
		value -= number;
	}
	EXPECT(0, value != 0);
	request.u.Compute.CSFId = 15;
	EXPECT(CS_SUCCESS, csAddBatchEntry(batch, &request, 0, 0, NULL));
	EXPECT(CS_OUT_OF_RESOURCES, csAddBatchEntry(batch, &request, 0, 0, NULL));
	EXPECT(CS_UNKNOWN_COMPUTE_FUNCTION,
	       csQueueBatchRequest(batch, NULL, NULL, NULL, NULL, NULL));
	EXPECT(CS_SUCCESS, csFreeBatchRequest(batch));

	EXPECT(CS_SUCCESS, csFreeMem(memory, NULL));
	EXPECT(CS_SUCCESS, csCloseCSx(device));
	EXPECT(CS_INVALID_HANDLE, csCloseCSx(device));
	puts("end");
	return 0;
}
