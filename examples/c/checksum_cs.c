/*
 * Compute the CRC-32C of blocks in the drive, by SNIA's Computational Storage API.
 *
 *   checksum_cs /dev/nvme0n1 FIRST_BLOCK BLOCKS
 *
 * The blocks go to device memory, not to the host. What was written to them through the page cache
 * has to be on the drive before (sync).
 */
#include <linux/fs.h>

#include "potash_cs.h"

static void check(CS_STATUS status, const char *call)
{
	if (status == CS_SUCCESS)
		return;
	fprintf(stderr, "%s: status %d\n", call, status);
	exit(1);
}

int main(int argc, char **argv)
{
	CsStorageRequest load = { .Mode = CS_STORAGE_BLOCK_IO };
	CsBlockIo *io = &load.u.BlockIo;
	CsComputeRequest *compute = malloc(sizeof(*compute) + sizeof(CsComputeArg));
	char drive[32];
	unsigned length = sizeof(drive);
	int file, block, nsid, count, size = sizeof(CSFIdInfo);
	unsigned long blocks;
	CS_DEV_HANDLE device;
	CS_MEM_HANDLE memory;
	CSFIdInfo function;
	u64 checksum;

	if (argc != 4 || !compute) {
		fprintf(stderr, "usage: %s NAMESPACE FIRST_BLOCK BLOCKS\n", argv[0]);
		return 2;
	}
	file = open(argv[1], O_RDONLY);
	if (file < 0 || ioctl(file, BLKSSZGET, &block) || (nsid = ioctl(file, NVME_IOCTL_ID)) < 0) {
		perror(argv[1]);
		return 1;
	}
	blocks = strtoul(argv[3], NULL, 0);
	if (!blocks || blocks > (unsigned long)INT32_MAX / block) {
		fputs("the number of blocks is 0 or too large\n", stderr);
		return 1;
	}
	check(csGetCSxFromPath(argv[1], &length, drive), "csGetCSxFromPath");
	check(csOpenCSx(drive, NULL, &device), "csOpenCSx");
	check(csAllocMem(device, blocks * block, NULL, &memory, NULL), "csAllocMem");

	load.DevHandle = device;
	io->Type = CS_STORAGE_LOAD_TYPE;
	io->DevMem.MemHandle = memory;
	io->NumRanges = 1;
	io->Range[0] = (CsBlockRange){ nsid, strtoull(argv[2], NULL, 0), blocks };
	check(csQueueStorageRequest(&load, NULL, NULL, NULL, NULL, NULL), "csQueueStorageRequest");

	check(csGetCSFId(device, "CRC32C", 0, &size, &count, &function), "csGetCSFId");
	compute->CSFId = function.CSFId;
	compute->NumArgs = 2;
	csHelperSetComputeArg(&compute->Args[0], CS_AFDM_TYPE, memory, 0ul);
	csHelperSetComputeArg(&compute->Args[1], CS_64BIT_VALUE_TYPE, (u64)blocks * block);
	check(csQueueComputeRequest(compute, NULL, NULL, NULL, NULL, &checksum),
	      "csQueueComputeRequest");
	printf("%08llx\n", (unsigned long long)checksum);

	check(csFreeMem(memory, NULL), "csFreeMem");
	check(csCloseCSx(device), "csCloseCSx");
	free(compute);
	close(file);
	return 0;
}
