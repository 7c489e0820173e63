/* A standard stream reads and writes an eventfd that was duplicated to its fd. */
#include "../c/check.h"

int main(void)
{
	uint64_t value = 0;
	CHECK(close(STDIN_FILENO) == 0);
	CHECK(eventfd(5, 0) == STDIN_FILENO);
	CHECK(fread(&value, sizeof value, 1, stdin) == 1 && value == 5);
	value = 7;
	CHECK(close(STDOUT_FILENO) == 0);
	CHECK(eventfd(0, EFD_NONBLOCK) == STDOUT_FILENO);
	CHECK(fwrite(&value, sizeof value, 1, stdout) == 1 && fflush(stdout) == 0);
	value = 0;
	CHECK(read(STDOUT_FILENO, &value, sizeof value) == 8 && value == 7);
	return 0;
}
