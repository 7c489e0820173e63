/* A program that uses only a pipe and a socket pair. ci/preload checks its statistics. */
#include "../c/check.h"

int main(void)
{
	char bytes[4];
	int ends[2], pair[2];
	CHECK(pipe(ends) == 0);
	CHECK(write(ends[1], "pipe", 4) == 4 && read(ends[0], bytes, 4) == 4);
	CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0);
	CHECK(write(pair[1], "pair", 4) == 4 && read(pair[0], bytes, 4) == 4);
	return 0;
}
